"""Track the position in an epoch of a loader, for each kind of data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from typing import Any, final

from accel_comm import Transport

from accel_data.iterable.rank_step import in_step, rotated
from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.stream_reader import StreamReader
from accel_data.resume.epoch_pass import EpochPass
from accel_data.resume.loader_state import LoaderState, ResumeError, StreamPosition, as_entries
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard
from accel_data.sharding.rank_slices import with_last


@final
class MapCursor:
    """A cursor in an epoch of a map-style dataset, whose position is the number of batches served.

    Args:
        shard: The batch sampler of this rank.
        state: The state to resume from, or None.
        skip: Batches of this rank to skip from there.
    """

    def __init__(self, shard: BatchSamplerShard, state: LoaderState | None, skip: int) -> None:
        self._shard = shard
        self._state = state
        self._begun = skip * shard.round + (0 if state is None else state.consumed)
        shard.skip = self._begun

    def begin(self) -> None:
        """Draw the order, once torch has begun to read.

        Raises:
            ResumeError: The order differs from the recorded one.
        """
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

    def served(self, batches: Iterator[Any], epoch: EpochPass) -> Iterator[Any]:
        """Yield the batches of this rank, and note each in `epoch` before.

        Args:
            batches: The batches of torch.
            epoch: The record of the epoch, which is changed.
        """
        order = self._order
        for at, batch in enumerate(batches, start=1):
            epoch.at = at
            if at == order.last:
                epoch.last, epoch.tail = True, order.tail
            yield batch

    def finish(self) -> None:
        """Do nothing, as the order is drawn whatever the script was served of it."""

    def entries(self, at: Any) -> dict[str, Any]:
        """Return the entries of a state of the loader at a position.

        Args:
            at: The position, or None for the start of the epoch.
        """
        consumed = min(self._begun + (at or 0) * self._shard.round, self._order.end)
        return {"consumed": consumed, "digest": self._order.digest(consumed)}

    def ended(self) -> AbstractContextManager[None]:
        """Return a context in which generators are in their states at the end of the epoch.

        It is used at the last batch.
        """
        return self._order.ended()


@final
class IterableCursor:
    """A cursor in an epoch of a stream.

    Its position is the newest batch of each reader, and the reader that is next.

    Args:
        reader: The reader of the stream.
        transport: Transport of the ranks that share the data, or None.
        state: The state to resume from, or None.
    """

    def __init__(self, reader: StreamReader, transport: Transport | None, state: LoaderState | None) -> None:
        self._reader = reader
        self._same = transport if reader.tells_first else None
        self._transport = transport if reader.in_step else None
        self._first = 0
        if state is not None:
            self._first = state.next_stream % reader.readers
            reader.begin_at(state)
            _warn_of_replay(state.position(), reader.dataset)
        self._taken = {} if reader.start is None else reader.start.taken
        self._states = reader.front_states()
        self._front = None if state is None else {int(source): front for source, front in state.front.items()}
        #: what readers have said at their ends
        self._ends: dict[int, Any] = {}

    def begin(self) -> None:
        """Note that workers have their position, and let an epoch that is left begin again at its start."""
        self._reader.passes += 1
        if self._front is None:
            self._front = self._reader.front_states()  # of shards too, which are made by now
        self._reader.start = StreamPosition({}, self._front) if self._front else None

    def served(self, batches: Iterator[Any], epoch: EpochPass) -> Iterator[Any]:
        """Yield the batches of this rank, and note each in `epoch` before.

        Args:
            batches: The batches of torch.
            epoch: The record of the epoch, which is changed.
        """
        source = chain.from_iterable(batches) if self._reader.at_a_time > 1 else batches
        source = self._without_ends(source) if self._reader.persistent else source
        source = rotated(source, self._first) if self._first else source
        source = source if self._same is None else self._compared(iter(source), self._same)
        steps = with_last(source)
        if self._transport is not None:
            steps = in_step(source, self._transport, rows=self._reader.rows, ending=self._reader.ending)
        readers = self._reader.readers
        newest: list[ReadBatch | None] = [None] * readers
        for read, epoch.last in steps:
            if read.reader is not None:
                newest[read.reader] = read
                epoch.at = tuple(newest), (read.reader + 1) % readers
            epoch.tail = read.tail
            batch, read.value = read.value, None
            yield batch

    def finish(self) -> None:
        """Let the next epoch begin at the positions that sources have now, or that their readers have reported."""
        self._reader.start = StreamPosition({}, self._ends) if self._ends else None
        self._reader.finished.fill_(self._reader.passes)

    def _without_ends(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Remove the records at the end of each reader, and keep what they say of the next epoch."""
        for batch in batches:
            if batch.end:
                self._ends |= batch.states or {}
            else:
                yield batch

    def _compared(self, batches: Iterator[ReadBatch], transport: Transport) -> Iterator[ReadBatch]:
        """Raise on every rank if first samples differ, and yield the same batches otherwise (collective)."""
        begun = list(islice(batches, 1))
        self._reader.tells_first = False
        digests = transport.world.all_gather_objects(begun[0].first if begun else None)
        read = {rank: digest for rank, digest in enumerate(digests) if digest is not None}
        if len(set(read.values())) > 1:
            told = ", ".join(f"{digest} on rank {rank}" for rank, digest in list(read.items())[:8])
            raise ValueError(
                f"every rank reads all of {type(self._reader.dataset).__name__} and keeps its part, and the first"
                f" samples are unlike: {told} (digests). If the stream gives each rank a part, pass"
                " DataLoaderConfiguration(already_sharded=True); if it shuffles, seed it alike on all ranks, give it a"
                " `generator`, or pass dispatch_batches=True; if samples may differ, as with noise,"
                " check_datasets=False"
            )
        yield from chain(begun, batches)

    def entries(self, at: Any) -> dict[str, Any]:
        """Return the entries of a state of the loader at a position.

        Args:
            at: The position, or None for the start of the epoch.
        """
        newest, following = at if at is not None else ((), self._first)
        taken, states = dict(self._taken), dict(self._states)
        for read in newest:
            if read is not None:
                taken |= read.taken
                states |= read.states or {}
        return {
            "consumed": sum(taken.values()),
            "taken": as_entries(taken),
            "sources": as_entries(states),
            "front": as_entries(self._front or {}),
            "next_stream": following,
        }

    def ended(self) -> AbstractContextManager[None]:
        """Return a context that leaves generators as they are, because a stream was read to its end."""
        return nullcontext()


def _warn_of_replay(start: StreamPosition, dataset: Any) -> None:
    """Warn of the cost to return to a position in a stream that cannot be moved there."""
    again = sum(taken for source, taken in start.taken.items() if start.states.get(source) is None)
    if again:
        warnings.warn(
            f"{again} samples are read again from {type(dataset).__name__}, and skipped, to resume where the state was"
            " taken: this takes time, and changes no result. A dataset whose state_dict has its whole position is not"
            " read again; the buffer of a shuffle is not in such a state",
            stacklevel=5,
        )


@final
class UnreadCursor:
    """A cursor in an epoch that another rank reads.

    Its methods are those of `MapCursor`.
    """

    def served(self, batches: Iterator[Any], epoch: EpochPass) -> Iterator[Any]:
        """Return no batches."""
        return iter(())

    def finish(self) -> None:
        """Do nothing."""

    def entries(self, at: Any) -> dict[str, Any]:
        """Return no entries, as the rank that reads has them."""
        return {}

    def ended(self) -> AbstractContextManager[None]:
        """Return a context that leaves generators as they are."""
        return nullcontext()
