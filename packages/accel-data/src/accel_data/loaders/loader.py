"""A DataLoader that serves one rank on its device, with its position and its last batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

import torch
from accel_comm import Transport
from accel_ops.fingerprint import Fingerprint
from accel_ops.rng import RNGType, synchronize_rng_states
from accel_ops.xla_graphs import step_marker_of
from accel_state import AccumulationState, Device
from torch.utils.data import DataLoader

from accel_data.iterable.read_batch import ReadCollate
from accel_data.iterable.source import is_stateful, state_of
from accel_data.iterable.stream_reader import StreamReader
from accel_data.loaders.device_prefetch import on_device, timed
from accel_data.loaders.dispatch import Dispatch
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.loaders.torchdata import with_torchdata
from accel_data.plan import LoaderPlan, plan_loader
from accel_data.resume.consumption_log import ConsumptionLog
from accel_data.resume.cursors import IterableCursor, MapCursor, UnreadCursor
from accel_data.resume.epoch_pass import EpochPass
from accel_data.resume.epochs import Cursor, EpochRun, EpochTracker
from accel_data.resume.loader_state import LoaderState, ResumeError, as_entries
from accel_data.resume.sampling_rng import SHARED, SamplingRng
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard
from accel_data.sharding.rank_slices import DataRank, Ending
from accel_data.sharding.samplers import innermost_sampler
from accel_data.traits import sampler_of, traits_of
from accel_data.workers import WorkerStart, end_at_exit

Batch = TypeVar("Batch")


class DataLoaderShard(DataLoaderStateMixin, DataLoader[Batch]):
    """A DataLoader that serves one rank on its device, and can resume where a state was taken.

    Each pass is a new epoch, which samplers and datasets with a `set_epoch` get. With a transport, the generators that
    draw the order are made equal to those of rank 0 at the start of each epoch.

    Args:
        dataset: The dataset, or the reader of a stream.
        device: Device that batches are moved to, or None to leave them.
        rng_types: Further generators to make equal on all ranks at the start of each epoch.
        skip_batches: How many batches of this rank each pass lacks, at its start.
        use_stateful_dataloader: Be an instance of torchdata's `StatefulDataLoader` too, if torchdata is installed. The
            batches and the states stay the same.
        plan: How ranks share the data; without it, this process gets all of it.
        share: The batch sampler of this rank; without it, the rank gets all batches of a map-style dataset.
        transport: Transport of the ranks that share the data.
        hardware: Device of this process.
        accumulation: The window of micro-batches of the script.
        non_blocking: Copy the next batch to the device while the script uses the current one.
        fingerprint: The fingerprint of the dataset, for states.
        consumption_log: File that gets a line at each start, resume and end of an epoch.
        **loader_settings: Arguments of torch's DataLoader.

    Collective:
        With a transport, every rank must start and end each epoch.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | str | None = None,
        rng_types: Iterable[str | RNGType] | None = None,
        *,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        plan: LoaderPlan | None = None,
        share: BatchSamplerShard | None = None,
        transport: Transport | None = None,
        hardware: Device | None = None,
        accumulation: AccumulationState | None = None,
        non_blocking: bool = False,
        fingerprint: Fingerprint | None = None,
        consumption_log: ConsumptionLog | None = None,
        **loader_settings: Any,
    ) -> None:
        super().__init__(dataset, **loader_settings)
        #: how ranks share the data
        self.plan = plan or plan_loader(traits_of(self), DataRank(0, 1))
        self._reader = dataset if isinstance(dataset, StreamReader) else None
        if self._reader is not None:  # which makes the batches; for torch, each is a sample of its own
            drops = self.plan.ending is Ending.DROP
            self.__dict__ |= {"batch_size": self._reader.rows, "drop_last": drops}
        elif share is None:
            share = BatchSamplerShard(sampler_of(self))
        if share is not None:  # a script that changes `loader.sampler` changes what draws the order
            self.__dict__["sampler"] = share.sampler
        #: what draws this rank's batches from the order of a map-style dataset
        self.share = share
        #: what gives this rank its order: the reader of a stream, or the share of a map-style dataset
        self._source: Any = self._reader if self._reader is not None else self.share
        self.device = device
        self.rng_types = list(rng_types or ())
        self.accumulation = accumulation or AccumulationState()
        self._ranks, self._hardware = transport, hardware
        #: the transport of ranks that read, each for itself
        self._transport = None if self.plan.dispatches else transport
        self._dispatch = None
        if self.plan.dispatches and transport is not None:
            self._dispatch = Dispatch(self.plan, transport, self.rng_types, hardware, device)
        index, ranks = self.plan.rank.index, self.plan.rank.of
        self._speaks_for_job = index == 0 and (transport is None or transport.world.rank == 0)
        self._epochs = EpochTracker(self.accumulation, consumption_log if self._speaks_for_job else None, ranks)
        self._non_blocking, self._fingerprint = non_blocking, fingerprint
        #: called for each batch with the seconds that the script has waited for it
        self.on_wait: Callable[[float], None] | None = None
        self._step_marker = step_marker_of(device, self.accumulation, hardware)
        self.skip_batches, self._seeds = skip_batches, True
        self.use_stateful_dataloader = use_stateful_dataloader
        if use_stateful_dataloader:
            kind: Any = type(self)
            self.__class__ = with_torchdata(kind)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override] # torch names a private class of its own
        epoch = EpochPass(self, self.rows, family=self._epochs)
        with self.accumulation.iterating(epoch) as passes:
            epoch.begin_inside(passes[:-1])
            running, batches, resumed = self._begin_pass(epoch)
            try:
                cursor, dispatch = running.cursor, self._dispatch
                served = (cursor.served if dispatch is None else partial(dispatch.served, cursor))(batches, epoch)
                if self._reader is not None and (self._epochs.rewound or not resumed):
                    # what a sampler can leave out is passed over already
                    served = islice(served, self.skip_batches, None)
                if self._step_marker is not None:
                    served = self._step_marker.mark_steps(served)
                served = on_device(served, epoch, self.device, non_blocking=self._non_blocking)
                for batch in served if self.on_wait is None else timed(served, self.on_wait):
                    if passes[-1] is not epoch:
                        self.accumulation.activate(epoch)
                    epoch.batches += 1
                    if epoch.last:
                        cursor.finish()
                    yield batch
                    if not epoch.last:  # after the last batch the script may have more to do at the end of an epoch
                        self.accumulation.before_batch(epoch, False)
                cursor.finish()
                running.ended = True
                if resumed and not epoch.last and self._speaks_for_job:
                    words = f"the rest of epoch {running.about.epoch}, which was resumed, has no batch"
                    warnings.warn(f"{words}; the next pass is epoch {running.about.epoch + 1}", stacklevel=2)
            finally:
                self._epochs.close(running)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and keep what `prepare` has put around it."""
        old = self.__dict__.get(name)
        if isinstance(old, ReadCollate | WorkerStart) and not isinstance(value, type(old)):
            value = old.around(value)
        elif name == "num_workers" and self.__dict__.get("_reader") is not None and value != old:
            raise ValueError(
                f"num_workers={value}: this stream was divided among {old or 'no'} loader workers when it was prepared;"
                " say num_workers in the DataLoader before prepare"
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        batches = super().__len__()
        return max((batches if self._dispatch is None else self._dispatch.length(batches)) - self.skip_batches, 0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for every sampler and dataset that has epochs."""
        self._epochs.iteration = epoch
        owners: tuple[Any, ...] = self.share, self.dataset
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader for the whole job, as JSON values and tensors.

        Inside an epoch the current batch counts as served. With the last batch, the state is at the start of the next
        epoch. While gradients accumulate, only what the newest optimizer step has seen counts.

        Collective:
            If `state_is_spread`, every rank must call.
        """
        if self._dispatch is None:
            return self._taken_state()
        state: dict[str, Any] = self._dispatch.on_zero(self._taken_state, "say where it stands", lambda state: state)
        return state

    @property
    def state_is_spread(self) -> bool:
        """True if ranks read shards of a stream, or rank 0 reads for all."""
        return self._dispatch is not None or self._source.rank_alone

    def _taken_state(self) -> dict[str, Any]:
        epochs, fresh = self._epochs, self.fresh()
        gathered = self._gathered if self._source.rank_alone else lambda mine: [mine]
        resume_point = epochs.resume_point()
        if resume_point is None and epochs.pending is not None:
            return replace(epochs.pending, step=fresh.step).as_dict()
        generators = self._sampling_rng()
        sources = as_entries(self._source.front_states())
        front = {"seeded": self._iterator is None, "sampler": self._sampler_state(), "sources": sources}
        if resume_point is None:
            about, entries = fresh, front | {"epoch": epochs.iteration, "rng_at_start": generators.capture()}
        else:
            running, at = resume_point
            about, entries = replace(running.about, step=fresh.step), running.entries(at)
            if all(gathered(running.at_end(at))):
                with running.cursor.ended():
                    entries |= front | {"ended": True, "rng_now": generators.capture()}
            else:
                states = epochs.rng_of_next() or generators.capture()
                entries["rng_now"] = {name: state for name, state in states.items() if name in SHARED}
        return replace(about, **LoaderState.merged(gathered(entries))).as_dict()

    def _gathered(self, mine: Any) -> list[Any]:
        """Return the values of all ranks (collective)."""
        if self._transport is None or self._transport.size == 1:
            return [mine]
        return self._transport.all_gather_objects(mine)

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Resume the next pass where `state` was taken, at any number of processes.

        Args:
            state: What `state_dict` has returned.
            strict: Whether a dataset that changed is an error, and not a warning.

        Raises:
            ResumeError: The message lists all problems. An order that does not repeat raises later, when the pass
                begins.

        Collective:
            Every rank must call, with the same state.
        """
        resumed = LoaderState.of(state, fresh=self.fresh(), strict=strict)
        self._source.begin_at(resumed)
        self._epochs.put_at(resumed)
        self._seeds = resumed.seeded
        self._iterator = None  # workers that live on would not hear of it
        sampler = innermost_sampler(self.share)
        if resumed.sampler is not None and is_stateful(sampler):
            sampler.load_state_dict(resumed.sampler)
        self.set_epoch(resumed.epoch + resumed.ended)
        states = resumed.rng_now if resumed.begun else resumed.rng_at_start
        own = {name: state for name, state in states.items() if name not in SHARED}
        self._sampling_rng().put(states if self.plan.rank.index == 0 else own)

    def without_first(self, batches: int) -> Self:
        """Return a loader that skips the first batches of each epoch, and counts epochs together with this one.

        Args:
            batches: Batches of this rank to skip.
        """
        twin = copy.copy(self)
        twin.skip_batches, twin._iterator = self.skip_batches + batches, None
        return twin

    @property
    def iteration(self) -> int:
        """The number of the next epoch, or of the one that runs."""
        return self._epochs.iteration

    @property
    def total_batch_size(self) -> int | None:
        """The number of samples in a batch of the whole job, or None if batches vary."""
        return None if self.rows is None else self.rows * self.plan.rank.of

    @property
    def total_dataset_length(self) -> int:
        """The number of samples in the whole dataset."""
        dataset: Any = self.dataset if self._reader is None else self._reader.dataset
        return len(dataset)

    @property
    def rows(self) -> int | None:
        """The number of samples in a full batch of this rank, or None if batches vary."""
        rows: int | None = self._source.rows
        if rows is None or self._dispatch is None:
            return rows
        return rows * self.plan.batches_per_round // self.plan.rank.of

    @property
    def _index_sampler(self) -> Any:
        # what torch draws indices from: alone, `batch_sampler` stays the user's own object
        return self.sampler if self.share is None else self.share

    def _sampling_rng(self) -> SamplingRng:
        return SamplingRng(self, *self._source.order_roots)

    def _begin_pass(self, epoch: EpochPass) -> tuple[EpochRun, Iterator[Any], bool]:
        """Return an epoch with its order drawn, its batches, and whether it resumes an earlier one (collective)."""
        state = self._epochs.take_pending()
        self._sampling_rng().follow_first_copy(self._ranks, self._hardware)
        if self._transport is not None:
            others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
            synchronize_rng_states(others, transport=self._transport, device=self._hardware)
        self.set_epoch(self.iteration)
        draw = partial(self._draw, state)
        drawn = draw() if self._dispatch is None else self._dispatch.on_zero(draw, "begin the pass")
        cursor, batches, drawn_from = drawn or (UnreadCursor(), iter(()), {})
        running = EpochRun(replace(self.fresh(), begun=True, epoch=self.iteration, **drawn_from), cursor, epoch)
        self._epochs.open(running, resumed=state is not None)
        return running, batches, state is not None

    def _draw(self, state: LoaderState | None) -> tuple[Cursor, Iterator[Any], dict[str, Any]]:
        """Draw the order, and return the cursor, the batches, and the entries of a state about the draw."""
        if state is not None:
            self._iterator = None  # workers that live on, of a loader without its first batches, are elsewhere
        generators, sampler = self._sampling_rng(), self._sampler_state()
        rng = generators.capture() if state is None else state.rng_at_start
        if self._transport is not None and self._transport.size > 1:
            rng = self._transport.broadcast_object(rng, 0)
        follows = self._transport is not None and self.plan.rank.index > 0
        if RNGType.TORCH in self.rng_types:  # the shared generators are equal already, and should stay so
            generators.put({name: kept for name, kept in rng.items() if name not in SHARED})
            follows = False
        if self._reader is not None and hasattr(self._reader.dataset, "set_epoch"):
            self._iterator = None  # workers that live on would stay in their epoch
        seeded, self._seeds = self._iterator is None and self._seeds, True
        if self.share is not None:
            # if the epoch drew no seed for workers, as they lived on, the order is drawn as if none were drawn now
            self.share.before_draw = (lambda: generators.put(rng)) if self._iterator is None and not seeded else None
            skip = self.skip_batches * self.plan.batches_per_round if state is None or self._epochs.rewound else 0
            cursor: MapCursor | IterableCursor = MapCursor(self.share, state, skip)
        else:
            cursor = IterableCursor(self._source, self._transport, state)
        refusal: Exception | None = None
        with generators.at(rng if state is not None or follows else None):
            try:
                batches = super().__iter__()
                end_at_exit(batches)
                cursor.begin()
            except Exception as failure:
                if state is None:
                    raise
                refusal = failure  # which all ranks are to hear of
        for rank, error in enumerate(self._gathered(refusal) if state is not None else ()):
            if error is not None:
                raise refusal or ResumeError(f"rank {rank} cannot continue: {error}")
        return cursor, batches, {"rng_at_start": rng, "sampler": sampler, "seeded": seeded}

    def fresh(self) -> LoaderState:
        """Return a state of this loader with the entries that do not depend on the position."""
        known = self._fingerprint
        return LoaderState(
            unit=self._source.unit,
            streams=self._source.streams,
            step=self._source.round * self.plan.batches_per_round * self.accumulation.every,
            drawn_by=type(innermost_sampler(self.share)).__name__ if self.share is not None else None,
            length=None if known is None else known.length,
            dataset=None if known is None else known.digest,
        )

    def _sampler_state(self) -> dict[str, Any] | None:
        sampler = innermost_sampler(self.share)
        return state_of(sampler) if is_stateful(sampler) else None
