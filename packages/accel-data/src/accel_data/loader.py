"""A DataLoader that serves one rank: on its device, telling the clock which batch is the last, and where it stands."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Self, TypeVar

import torch
from accel_state import Device, Epoch, StepClock, Transport
from torch.utils.data import DataLoader, IterableDataset

from accel_data.courses import Course, SamplerCourse, ShardsCourse, StreamCourse
from accel_data.draws import SHARED, Draws
from accel_data.feed import feed
from accel_data.fingerprint import Fingerprint
from accel_data.graphs import graphs_of
from accel_data.iterable import IterableDatasetShard, is_stateful
from accel_data.leaving import end_at_exit
from accel_data.ledger import Ledger
from accel_data.passes import Pass, Passes
from accel_data.plan import DataRank, Ending
from accel_data.rng import RNGType, synchronize_rng_states
from accel_data.samplers import BatchSamplerShard, inner_sampler, innermost_sampler
from accel_data.shards import ShardedStream
from accel_data.state import LoaderState, ResumeError

Batch = TypeVar("Batch")


class DataLoaderShard(DataLoader[Batch]):
    """A DataLoader that serves one rank: on its device, telling the clock which batch is the last, and where it stands.

    Each pass is a new epoch: `set_epoch` is passed on to whatever takes it. With a transport, generators named by
    `rng_types` are made equal to those of rank 0 at the start of each pass, and so are those that draw the order.

    Collective: with a transport, every rank must start and end each pass.
    """

    #: what draws this rank's batches from the order of a map-style dataset
    share: BatchSamplerShard | None = None

    def __init__(
        self,
        dataset: Any,
        device: torch.device | str | None = None,
        rng_types: Iterable[str | RNGType] | None = None,
        *,
        share: BatchSamplerShard | None = None,
        where: DataRank | None = None,
        ending: Ending = Ending.REPEAT,
        transport: Transport | None = None,
        hardware: Device | None = None,
        clock: StepClock | None = None,
        non_blocking: bool = False,
        fingerprint: Fingerprint | None = None,
        ledger: Ledger | None = None,
        **loader_settings: Any,
    ) -> None:
        super().__init__(dataset, **loader_settings)
        self.share = share
        self.device = device
        self.rng_types = list(rng_types or ())
        self.clock = clock or StepClock()
        self.where = where or DataRank(0, 1)
        # one line for the job, not one a rank
        self._passes = Passes(self.clock, ledger if self.where.index == 0 else None, self.where.of)
        self._ending = ending
        self._transport = transport
        self._hardware = hardware
        self._non_blocking = non_blocking
        self._fingerprint = fingerprint
        self._graphs = graphs_of(device, self.clock, hardware)
        self._skip = 0
        self._seeds = True

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override] # torch names a private class of its own
        running, batches, resumed = self.begin_pass()
        with self.clock.iterating(self) as running.epoch:
            self._passes.open(running, self.fresh, resumed=resumed)
            try:
                served = running.course.served(batches, running.epoch)
                passed = 0 if resumed or isinstance(running.course, SamplerCourse) else self._skip
                wanted = islice(served, passed, None) if passed else served
                if self._graphs is not None:
                    wanted = self._graphs.fed(wanted)
                epoch, passes = running.epoch, running.epoch.passes
                for batch in feed(wanted, epoch, self.device, non_blocking=self._non_blocking):
                    if passes[-1] is not epoch:
                        epoch.take_over()
                    epoch.came += 1
                    yield batch
                running.ended = True
            finally:
                self._passes.close(running, self.fresh)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for every sampler and dataset that has epochs."""
        self._passes.iteration = epoch
        owner: Any = self._shard
        while owner is not None:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
            owner = inner_sampler(owner)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, for the whole job: JSON and tensors.

        Inside a pass the batch in hand counts as served; while gradients accumulate, only what the newest optimizer
        step has seen does.

        Collective: where the stream is sharded at its source, every rank must call.
        """
        now = self._draws().capture()
        here = self._passes.here(now, self.fresh)
        if here is None:
            seeded = self._iterator is None
            here = replace(self.fresh(), seeded=seeded, epoch=self.iteration, draws=now, sampler=self._sampler_state())
        return here.as_dict()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Lets the next pass continue where `state` was taken, at any number of processes.

        Without `strict` a dataset that changed is accepted, with a warning.

        Raises: ResumeError that lists all that stands against it; also later, in the pass, for an order that does not
        repeat.
        Collective: every rank must call, with the same state.
        """
        found = LoaderState.of(state, fresh=self.fresh(), strict=strict)
        if isinstance(self.dataset, ShardedStream) and found.unit == "shards":
            self.dataset.cut_into(found.streams)
        self._passes.forget()
        self._passes.resume = found if found.begun else None
        self._seeds = found.seeded
        self._iterator = None  # workers that live on would not hear of it
        sampler = innermost_sampler(self._shard)
        if found.sampler is not None and is_stateful(sampler):
            sampler.load_state_dict(found.sampler)
        self.set_epoch(found.epoch)
        states = found.now if found.begun else found.draws
        own = {name: one for name, one in states.items() if name not in SHARED}
        self._draws().put(states if self.where.index == 0 else own)

    def without_first(self, batches: int) -> Self:
        """A loader whose passes are those of this one without its first `batches` batches; passes count for both."""
        twin = copy.copy(self)
        twin._skip = batches
        twin._iterator = None
        return twin

    @property
    def iteration(self) -> int:
        """The number of the next pass, or of the one that runs."""
        return self._passes.iteration

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a batch of the whole job; None when batches vary."""
        rows = self._rows
        return None if rows is None else rows * self.where.of

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        dataset: Any = self.dataset
        return len(dataset.dataset if isinstance(dataset, IterableDatasetShard | ShardedStream) else dataset)

    @property
    def _rows(self) -> int | None:
        if isinstance(self.dataset, IterableDatasetShard | ShardedStream):
            return self.dataset.rows
        return self._shard.rows if isinstance(self._shard, BatchSamplerShard) else self.batch_size

    @property
    def _index_sampler(self) -> Any:
        # what torch draws indices from: alone, `batch_sampler` stays the user's own object
        return self.share if self.share is not None else self._shard

    @property
    def _shard(self) -> Any:
        if self.share is not None:
            return self.share
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def _draws(self) -> Draws:
        if isinstance(self.dataset, IterableDataset):
            return Draws(self, getattr(self.dataset, "dataset", self.dataset))
        return Draws(self, self._shard)

    def begin_pass(self) -> tuple[Pass, Iterator[Any], bool]:
        """A pass whose order is drawn, its batches before they are served, and whether it continues an earlier one.

        Collective: with a transport, every rank must call.
        """
        state, self._passes.resume = self._passes.resume, None
        if self._transport is not None:
            others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
            synchronize_rng_states(others, transport=self._transport, device=self._hardware)
        self.set_epoch(self.iteration)
        generators, sampler = self._draws(), self._sampler_state()
        draws = generators.capture() if state is None else state.draws
        if self._transport is not None and self._transport.size > 1:
            draws = self._transport.broadcast_object(draws, 0)
        follows = self._transport is not None and self.where.index > 0
        if RNGType.TORCH in self.rng_types:  # the shared generators are equal already, and should stay so
            generators.put({name: one for name, one in draws.items() if name not in SHARED})
            follows = False
        if hasattr(getattr(self.dataset, "dataset", None), "set_epoch"):
            self._iterator = None  # workers that live on would stay in their epoch
        seeded, self._seeds = self._iterator is None and self._seeds, True
        if self.share is not None:
            # where the epoch drew no seed for workers, as they lived on, the order is drawn as if none were drawn now
            self.share.before_draw = (lambda: generators.put(draws)) if self._iterator is None and not seeded else None
        course, refusal = self._course(state), None
        with generators.at(draws if state is not None or follows else None):
            batches = super().__iter__()
            end_at_exit(batches)
            try:
                course.begin()
            except ResumeError as error:
                refusal = error
        self._refuse_together(state, refusal)
        return Pass(self.iteration, course, Epoch(self), draws, sampler, seeded), batches, state is not None

    def _refuse_together(self, state: LoaderState | None, refusal: ResumeError | None) -> None:
        """Collective: with a transport and a state, every rank must call."""
        refusals = [refusal]
        if state is not None and self._transport is not None and self._transport.size > 1:
            refusals = self._transport.all_gather_objects(refusal)
        for rank, found in enumerate(refusals):
            if found is not None:
                raise refusal or ResumeError(f"rank {rank} cannot continue: {found}")

    def _course(self, state: LoaderState | None) -> Course:
        if isinstance(self.dataset, ShardedStream):
            return ShardsCourse(self.dataset, max(self.num_workers, 1), self._transport, self._ending, state)
        if isinstance(self.dataset, IterableDatasetShard):
            return StreamCourse(self.dataset, self.num_workers, state)
        return SamplerCourse(self._shard, state, self._skip if state is None else 0)

    def fresh(self) -> LoaderState:
        """What a state of this loader holds whatever its place."""
        dataset, readers = self.dataset, max(self.num_workers, 1)
        unit, streams, each = "samples", readers, 1
        if isinstance(dataset, ShardedStream):
            unit, streams, each = "shards", dataset.shards, (dataset.rows or 1) * self.where.of
        elif isinstance(dataset, IterableDatasetShard):
            unit, each = "samples" if dataset.rows is not None else "batches", dataset.round
        else:
            unit, streams, each = self._shard.unit, 0, self._shard.round
        known = self._fingerprint
        return LoaderState(
            unit=unit,
            streams=streams,
            step=each * self.clock.every,
            drawn_by=None if streams else type(innermost_sampler(self._shard)).__name__,
            length=None if known is None else known.length,
            dataset=None if known is None else known.digest,
        )

    def _sampler_state(self) -> dict[str, Any] | None:
        sampler = innermost_sampler(self._shard)
        state: dict[str, Any] | None = sampler.state_dict() if is_stateful(sampler) else None
        return state
