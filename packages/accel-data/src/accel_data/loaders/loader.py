"""A DataLoader that serves one rank: on its device, telling the clock which batch is the last, and where it stands."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Self, TypeVar

import torch
from accel_state import Device, Epoch, StepClock, Transport
from torch.utils.data import DataLoader, IterableDataset

from accel_data.checks.fingerprint import Fingerprint
from accel_data.iterable.reader import Reader, cut_alike, state_of
from accel_data.iterable.stateful import is_stateful
from accel_data.loaders.device_prefetch import feed
from accel_data.loaders.xla_graphs import graphs_of
from accel_data.resume.cursors import Cursor, IterableCursor, MapCursor
from accel_data.resume.epochs import EpochRun, EpochTracker
from accel_data.resume.ledger import Ledger
from accel_data.resume.loader_state import LoaderState, ResumeError
from accel_data.resume.sampling_rng import SHARED, SamplingRng
from accel_data.rng import RNGType, synchronize_rng_states
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard, inner_sampler, innermost_sampler
from accel_data.sharding.rank_slices import DataRank, Ending
from accel_data.workers.worker_shutdown import end_at_exit

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
        check_first: bool = False,
        **loader_settings: Any,
    ) -> None:
        super().__init__(dataset, **loader_settings)
        self.share = share
        self._reader = dataset if isinstance(dataset, Reader) else None
        if self._reader is not None:  # which makes the batches; for torch, each is a sample of its own
            self._reader.tells_first = check_first
            self.__dict__ |= {"batch_size": self._reader.settings.rows, "drop_last": ending is Ending.DROP}
        self.device = device
        self.rng_types = list(rng_types or ())
        self.clock = clock or StepClock()
        self.where = where or DataRank(0, 1)
        # one line for the job, not one a rank
        self._epochs = EpochTracker(self.clock, ledger if self.where.index == 0 else None, self.where.of)
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
        with self.clock.iterating(self, rows=self.rows) as epoch:
            running.epoch = epoch
            self._epochs.open(running, self.fresh, resumed=resumed)
            try:
                served = running.cursor.served(batches, epoch)
                # what a state says was served is passed over already, and so is what a sampler can leave out
                if self._skip and not resumed and self._reader is not None:
                    served = islice(served, self._skip, None)
                if self._graphs is not None:
                    served = self._graphs.fed(served)
                passes = epoch.passes
                for batch in feed(served, epoch, self.device, non_blocking=self._non_blocking):
                    if passes[-1] is not epoch:
                        epoch.take_over()
                    epoch.came += 1
                    yield batch
                running.ended = True
                if resumed and not epoch.last and self.where.index == 0:
                    words = f"the rest of epoch {running.number}, which was resumed, has no batch"
                    warnings.warn(f"{words}; the next pass is epoch {running.number + 1}", stacklevel=2)
            finally:
                self._epochs.close(running, self.fresh)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for every sampler and dataset that has epochs."""
        self._epochs.iteration = epoch
        owner: Any = self._shard
        while owner is not None:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
            owner = inner_sampler(owner)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, for the whole job: JSON and tensors.

        Inside a pass the batch in hand counts as served; with its last batch the next epoch begins. While gradients
        accumulate, only what the newest optimizer step has seen is served.

        Collective: if ranks read shards of a stream, every rank must call.
        """
        return self.place(self._epochs, self.fresh()).as_dict()

    def place(self, epochs: EpochTracker, fresh: LoaderState) -> LoaderState:
        """The state of this loader, whose passes `epochs` tracks; `fresh` is what it says whatever the place.

        Collective: if ranks read shards of a stream, every rank must call.
        """
        standing = epochs.standing()
        if standing is None and (pending := epochs.resume or epochs.finished) is not None:
            return replace(pending, step=fresh.step)
        generators, front = self._sampling_rng(), {"seeded": self._iterator is None, "sampler": self._sampler_state()}
        sources = {} if self._reader is None else self._reader.front_states()
        front["sources"] = {str(one): state for one, state in sources.items() if state is not None}
        if standing is None:
            told = self._exchanged(front)
            return replace(fresh, epoch=epochs.iteration, draws=generators.capture(), **LoaderState.merged(told))
        running, at = standing
        entries = running.entries(at, fresh) | {"begun": True, "epoch": running.number, "draws": running.draws}
        if all(self._exchanged(running.at_end(at))):
            with running.cursor.ended():
                entries |= {"ended": True, "now": generators.capture(), **front}
        else:
            now = epochs.next_draws() or generators.capture()
            entries |= {"now": {name: state for name, state in now.items() if name in SHARED}}
            entries |= {"sampler": running.sampler, "seeded": running.seeded}
        return replace(fresh, **LoaderState.merged(self._exchanged(entries)))

    def _exchanged(self, mine: Any) -> list[Any]:
        """What each rank says; Collective: if ranks read shards of a stream, every rank must call."""
        alone = self._reader is None or not self._reader.rank_alone
        if alone or self._transport is None or self._transport.size == 1:
            return [mine]
        return self._transport.all_gather_objects(mine)

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Lets the next pass continue where `state` was taken, at any number of processes.

        Without `strict` a dataset that changed is accepted, with a warning.

        Raises: ResumeError that lists all that stands against it; also later, in the pass, for an order that does not
        repeat.
        Collective: every rank must call, with the same state.
        """
        found = LoaderState.of(state, fresh=self.fresh(), strict=strict)
        cut_alike(self.dataset, found)
        if self._reader is not None:
            self._reader.place_at(found.position())
        self._epochs.put_at(found)
        self._seeds = found.seeded
        self._iterator = None  # workers that live on would not hear of it
        sampler = innermost_sampler(self._shard)
        if found.sampler is not None and is_stateful(sampler):
            sampler.load_state_dict(found.sampler)
        self.set_epoch(found.epoch + found.ended)
        states = found.now if found.begun else found.draws
        own = {name: one for name, one in states.items() if name not in SHARED}
        self._sampling_rng().put(states if self.where.index == 0 else own)

    def without_first(self, batches: int) -> Self:
        """A loader whose passes are those of this one without its first `batches` batches; passes count for both."""
        twin = copy.copy(self)
        twin._skip = batches
        twin._iterator = None
        return twin

    @property
    def iteration(self) -> int:
        """The number of the next pass, or of the one that runs."""
        return self._epochs.iteration

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a batch of the whole job; None when batches vary."""
        rows = self.rows
        return None if rows is None else rows * self.where.of

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        dataset: Any = self.dataset if self._reader is None else self._reader.dataset
        return len(dataset)

    @property
    def rows(self) -> int | None:
        """Samples of a full batch of this rank; None when batches vary."""
        if self._reader is not None:
            return self._reader.settings.rows
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

    def _sampling_rng(self) -> SamplingRng:
        if isinstance(self.dataset, IterableDataset):
            own = self._reader is not None and self._reader.unit == "readers"  # whose draws are the script's affair
            return SamplingRng(self, *() if own else (self.dataset if self._reader is None else self._reader.dataset,))
        return SamplingRng(self, self._shard)

    def begin_pass(self) -> tuple[EpochRun, Iterator[Any], bool]:
        """A pass whose order is drawn, its batches before they are served, and whether it continues an earlier one.

        Collective: with a transport, every rank must call.
        """
        state, self._epochs.resume = self._epochs.resume, None
        if state is not None:
            self._iterator = None  # workers that live on, of a loader without its first batches, are elsewhere
        if self._transport is not None:
            others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
            synchronize_rng_states(others, transport=self._transport, device=self._hardware)
        self.set_epoch(self.iteration)
        generators, sampler = self._sampling_rng(), self._sampler_state()
        draws = generators.capture() if state is None else state.draws
        if self._transport is not None and self._transport.size > 1:
            draws = self._transport.broadcast_object(draws, 0)
        follows = self._transport is not None and self.where.index > 0
        if RNGType.TORCH in self.rng_types:  # the shared generators are equal already, and should stay so
            generators.put({name: one for name, one in draws.items() if name not in SHARED})
            follows = False
        if self._reader is not None and hasattr(self._reader.dataset, "set_epoch"):
            self._iterator = None  # workers that live on would stay in their epoch
        seeded, self._seeds = self._iterator is None and self._seeds, True
        if self.share is not None:
            # where the epoch drew no seed for workers, as they lived on, the order is drawn as if none were drawn now
            self.share.before_draw = (lambda: generators.put(draws)) if self._iterator is None and not seeded else None
        cursor, refusal = self._cursor(state), None
        with generators.at(draws if state is not None or follows else None):
            batches = super().__iter__()
            end_at_exit(batches)
            try:
                cursor.begin()
            except ResumeError as error:
                refusal = error
        self._refuse_together(state, refusal)
        return EpochRun(self.iteration, cursor, Epoch(self), draws, sampler, seeded), batches, state is not None

    def _refuse_together(self, state: LoaderState | None, refusal: ResumeError | None) -> None:
        """Collective: with a transport and a state, every rank must call."""
        refusals = [refusal]
        if state is not None and self._transport is not None and self._transport.size > 1:
            refusals = self._transport.all_gather_objects(refusal)
        for rank, found in enumerate(refusals):
            if found is not None:
                raise refusal or ResumeError(f"rank {rank} cannot continue: {found}")

    def _cursor(self, state: LoaderState | None) -> Cursor:
        if self._reader is not None:
            return IterableCursor(self._reader, self._transport, state, self._ending)
        return MapCursor(self._shard, state, self._skip if state is None else 0)

    def fresh(self) -> LoaderState:
        """What a state of this loader holds whatever its place."""
        reader, known = self._reader, self._fingerprint
        return LoaderState(
            unit=self._shard.unit if reader is None else reader.unit,
            streams=0 if reader is None else reader.streams,
            step=(self._shard if reader is None else reader).round * self.clock.every,
            drawn_by=type(innermost_sampler(self._shard)).__name__ if reader is None else None,
            length=None if known is None else known.length,
            dataset=None if known is None else known.digest,
        )

    def _sampler_state(self) -> dict[str, Any] | None:
        sampler = innermost_sampler(self._shard)
        return state_of(sampler) if is_stateful(sampler) else None
