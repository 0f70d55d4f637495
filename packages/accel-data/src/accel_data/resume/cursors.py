"""Where a pass over a loader stands, for each kind of data: what each batch is, and the place after it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from accel_state import Epoch, Transport

from accel_data.iterable.rank_step import in_step, rotated
from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.reader import Reader
from accel_data.resume.loader_state import LoaderState, ResumeError, StreamPosition
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard
from accel_data.sharding.rank_slices import Ending, with_last


class Cursor(ABC):
    """Where one pass of a loader stands; it is made before batches are asked for."""

    @abstractmethod
    def begin(self) -> None:
        """Draws the order, if that is done in this process; torch has begun to read."""

    @abstractmethod
    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """The batches of this rank; `epoch` is true of each before it is yielded."""

    @abstractmethod
    def entries(self, at: Any) -> dict[str, Any]:
        """What the loader's state says of the place `at`; None is the place where the pass began."""

    @abstractmethod
    def ended(self) -> AbstractContextManager[None]:
        """In this block, at the last batch, generators stand where the end of the pass leaves them."""


@final
class MapCursor(Cursor):
    """A pass over a map-style dataset; a place is the number of batches handed out."""

    def __init__(self, shard: BatchSamplerShard, state: LoaderState | None, skip: int) -> None:
        self._shard = shard
        self._state = state
        self._begun = skip * shard.round if state is None else state.consumed
        shard.start_at(self._begun)

    def begin(self) -> None:
        """Raises: ResumeError if the order is not the recorded one."""
        self._order, state = self._shard.newest(), self._state
        if state is None or state.digest is None:
            return
        if self._order.digest(state.consumed) != state.digest:
            raise ResumeError(
                f"the sampler does not repeat its order: the first {state.consumed} {state.unit} of epoch {state.epoch}"
                " are not those that were served. An order must follow from a `generator` attribute, from a global"
                " generator (torch, random, NumPy) read when the pass starts, from set_epoch, or from the sampler's own"
                " state_dict; and dataset, sampler and library versions must be the same"
            )

    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """As `Cursor`."""
        order = self._order
        for at, batch in enumerate(batches, start=1):
            epoch.at = at
            if at == order.last:
                epoch.last, epoch.tail = True, order.tail
            yield batch

    def entries(self, at: Any) -> dict[str, Any]:
        """As `Cursor`."""
        consumed = min(self._begun + (at or 0) * self._shard.round, self._order.end)
        return {"consumed": consumed, "digest": self._order.digest(consumed)}

    def ended(self) -> AbstractContextManager[None]:
        """As `Cursor`."""
        return self._order.ended()


@final
class IterableCursor(Cursor):
    """A pass over a stream; a place is the newest batch of each reader, and the reader whose turn is next."""

    def __init__(
        self,
        reader: Reader,
        transport: Transport | None,
        state: LoaderState | None,
        ending: Ending,
    ) -> None:
        self._reader = reader
        self._same = transport if reader.tells_first else None
        self._readers = reader.settings.readers
        together = reader.rank_alone and transport is not None and transport.size > 1
        self._transport = transport if together and ending is not Ending.UNEVEN else None
        self._ending = ending
        self._first = 0 if state is None else state.next_stream % self._readers
        start = reader.start or StreamPosition({}, {})
        if state is not None:
            reader.place_at(start := state.position())
            warn_of_replay(start, reader.dataset)
        self._taken = start.taken
        self._states = start.states or reader.front_states()
        self._front = self._states if state is None else {int(one): said for one, said in state.front.items()}
        reader.told, reader.begun = None, self._front

    def begin(self) -> None:
        """Workers have their copy of where to begin by now."""
        self._reader.start = None

    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """As `Cursor`."""
        source = self._without_ends(batches) if self._reader.tells_end else batches
        source = rotated(source, self._first) if self._first else source
        if self._same is not None:
            source = self._compared(source, self._same)
        newest: list[ReadBatch | None] = [None] * self._readers
        if self._transport is not None:
            for batch, read, epoch.tail, epoch.last in in_step(
                source, self._transport, rows=self._reader.settings.rows, ending=self._ending
            ):
                if read is not None:
                    newest[read.reader] = read
                    epoch.at = tuple(newest), (read.reader + 1) % self._readers
                if epoch.last:
                    self._reader.begun = None
                yield batch
            return
        for read, epoch.last in with_last(source):
            newest[read.reader] = read
            epoch.tail, epoch.at = read.tail, (tuple(newest), (read.reader + 1) % self._readers)
            value, read.value = read.value, None
            if epoch.last:
                self._reader.begun = None
            yield value

    def _compared(self, batches: Iterator[ReadBatch], transport: Transport) -> Iterator[ReadBatch]:
        """The same batches, once all ranks have read the same first sample.

        Raises: ValueError on every rank if they have not.
        Collective: every rank of the transport must call.
        """
        batches = iter(batches)
        first = next(batches, None)
        self._reader.tells_first = False
        refuse_unlike(transport.all_gather_objects(None if first is None else first.first), self._reader.dataset)
        if first is not None:
            yield first
            yield from batches

    def _without_ends(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Takes out the records at the end of each reader, and notes what they say of the next pass."""
        for batch in batches:
            if batch.end:
                self._reader.told = (self._reader.told or {}) | (batch.states or {})
            else:
                yield batch

    def entries(self, at: Any) -> dict[str, Any]:
        """As `Cursor`."""
        newest, following = at if at is not None else ((), self._first)
        taken, states = dict(self._taken), dict(self._states)
        for read in newest:
            if read is not None:
                taken |= read.taken or self._reader.counts(read.reader, read.given, self._taken)
                states |= read.states or {}
        return {
            "consumed": sum(taken.values()),
            "taken": {str(source): count for source, count in sorted(taken.items())},
            "sources": {str(source): state for source, state in sorted(states.items()) if state is not None},
            "front": {str(source): state for source, state in sorted(self._front.items()) if state is not None},
            "next_stream": following,
        }

    def ended(self) -> AbstractContextManager[None]:
        """As `Cursor`: at its last batch a stream was read to its end."""
        return nullcontext()


def refuse_unlike(digests: list[str | None], dataset: Any) -> None:
    """Raises: ValueError if ranks that read the same stream read unlike first samples."""
    read = {rank: digest for rank, digest in enumerate(digests) if digest is not None}
    if len(set(read.values())) > 1:
        told = ", ".join(f"{digest} on rank {rank}" for rank, digest in list(read.items())[:8])
        raise ValueError(
            f"every rank reads all of {type(dataset).__name__} and keeps its part, and the first samples are unlike:"
            f" {told} (digests). If the stream gives each rank a part, pass DataLoaderConfiguration("
            "already_sharded=True); if it shuffles, seed it alike on all ranks, give it a `generator`, or pass"
            " dispatch_batches=True; if samples may differ, as with noise, check_datasets=False"
        )


def warn_of_replay(start: StreamPosition, dataset: Any) -> None:
    """Says what it costs to come back to a place in a stream that cannot be put there."""
    again = sum(taken for source, taken in start.taken.items() if start.states.get(source) is None)
    if again:
        warnings.warn(
            f"{type(dataset).__name__} cannot be put at a place: {again} samples are read again and thrown away to come"
            " back to where the state was taken. A dataset with state_dict and load_state_dict would not need that",
            stacklevel=5,
        )
