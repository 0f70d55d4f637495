"""One pass of a loader, for each kind of data: where it begins, what each batch is, and the place after it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

from accel_state import Epoch, Transport

from accel_data.iterable import IterableDatasetShard, StreamStart, is_stateful
from accel_data.marks import Mark, Marked
from accel_data.plan import Ending, with_last
from accel_data.samplers import BatchSamplerShard
from accel_data.shards import ShardedStream, in_turn
from accel_data.state import LoaderState, ResumeError
from accel_data.turns import in_step, rotated


class Course(ABC):
    """One pass of a loader, made before its batches are asked for."""

    @abstractmethod
    def begin(self) -> None:
        """Draws the order, where that is done in this process."""

    @abstractmethod
    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """The batches of this rank; `epoch` is true of each before it is yielded."""

    @abstractmethod
    def entries(self, at: Any) -> dict[str, Any]:
        """What the loader's state says of the place `at`; None is the place where the pass began."""


@final
class SamplerCourse(Course):
    """A pass over a map-style dataset."""

    def __init__(self, shard: BatchSamplerShard, state: LoaderState | None, skip: int) -> None:
        self._shard = shard
        self._state = state
        shard.start_at((state.consumed if state is not None else 0) + skip * shard.round)

    def begin(self) -> None:
        """Raises: ResumeError when the order is not the one that was recorded."""
        self._walk = self._shard.walk
        self._walk.begin()
        state = self._state
        if state is None or state.digest is None:
            return
        if self._walk.digest(state.consumed) != state.digest:
            raise ResumeError(
                f"the sampler does not repeat its order: the first {state.consumed} {state.unit} of epoch {state.epoch}"
                " are not those that were served. An order must follow from a `generator` attribute, from a global"
                " generator (torch, random, NumPy) read when the pass starts, from set_epoch, or from the sampler's own"
                " state_dict; and dataset, sampler and library versions must be the same"
            )

    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """As `Course`; a place is the number of batches handed out."""
        end = self._walk.end
        for at, batch in enumerate(batches, start=1):
            epoch.at = at
            if at == end.number:
                epoch.last, epoch.tail = True, end.tail
            yield batch

    def entries(self, at: Any) -> dict[str, Any]:
        """As `Course`."""
        consumed = self._walk.consumed(at or 0)
        return {"consumed": consumed, "digest": self._walk.digest(consumed)}


@final
class StreamCourse(Course):
    """A pass over a stream that every rank reads, or that one rank reads for all."""

    def __init__(self, stream: IterableDatasetShard, workers: int, state: LoaderState | None) -> None:
        self._stream = stream
        self._workers = workers
        self._readers = readers = max(workers, 1)
        self._first = 0 if state is None else state.next_stream
        self._taken = [0] * readers if state is None else [state.taken.get(str(one), 0) for one in range(readers)]
        self._states = [None if state is None else state.sources.get(str(one)) for one in range(readers)]
        stream.start = None
        if state is not None:
            stream.start = StreamStart(tuple(self._taken), tuple(self._states))
            again = sum(taken for taken, source in zip(self._taken, self._states, strict=True) if source is None)
            if again:
                warn_of_replay(again, stream.dataset)

    def begin(self) -> None:
        """Workers have their copy of where to begin by now."""
        if self._workers:
            self._stream.start = None

    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """As `Course`; a place is a number of batches, or what all readers have given where they tell."""
        each, marks = self._stream.round, self._readers > 1 or is_stateful(self._stream.dataset)
        source = rotated(batches, self._first) if self._first else batches
        taken, states, following = list(self._taken), list(self._states), self._first
        for at, (batch, last) in enumerate(with_last(source), start=1):
            epoch.last = last
            if type(batch) is not Marked:
                epoch.at = at
                yield batch
                continue
            mark = batch.mark
            epoch.tail = mark.tail
            if marks:
                taken[mark.stream] += self._real(mark.tail, each)
                states[mark.stream] = mark.state
                following = (mark.stream + 1) % self._readers
                epoch.at = (tuple(taken), tuple(states), following)
            else:
                epoch.at = (((at - 1) * each + self._taken[0] + self._real(mark.tail, each),), (None,), 0)
            yield batch.value

    def _real(self, tail: Any, each: int) -> int:
        if tail is None:
            return each
        return tail.total if self._stream.rows is not None else sum(1 for real in tail.real if real)

    def entries(self, at: Any) -> dict[str, Any]:
        """As `Course`."""
        if at is None or isinstance(at, int):
            taken: tuple[int, ...] = tuple(self._taken)
            states, following = tuple(self._states), self._first
            if at is not None:
                taken = (taken[0] + at * self._stream.round,)
        else:
            taken, states, following = at
        return {
            "consumed": sum(taken),
            "taken": {str(one): count for one, count in enumerate(taken)},
            "sources": {str(one): source for one, source in enumerate(states) if source is not None},
            "next_stream": following,
        }


@final
class ShardsCourse(Course):
    """A pass over a stream that is sharded at its source."""

    def __init__(
        self,
        stream: ShardedStream,
        readers: int,
        transport: Transport | None,
        ending: Ending,
        state: LoaderState | None,
    ) -> None:
        self._stream = stream
        self._readers = readers
        self._transport = transport
        self._ending = ending
        self._first = 0
        self._taken: dict[int, int] = {}
        self._states: dict[int, Any] = {}
        stream.start = None
        if state is not None:
            self._taken = {int(shard): taken for shard, taken in state.taken.items()}
            self._states = {int(shard): source for shard, source in state.sources.items()}
            self._first = state.next_stream % readers
            stream.start = (self._taken, self._states)
            again = sum(taken for shard, taken in self._taken.items() if shard not in self._states)
            if again:
                warn_of_replay(again, stream.dataset)

    def begin(self) -> None:
        """The order is read where the stream is."""

    def served(self, batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
        """As `Course`; a place is what was taken of this rank's shards."""
        source = rotated(batches, self._first) if self._first else batches
        self._whole, self._newest = 0, (dict(self._taken), dict(self._states))
        if self._transport is None or self._transport.size == 1 or self._ending is Ending.UNEVEN:
            for item, epoch.last in with_last(source):
                if type(item) is Marked:
                    self._note(item.mark, epoch)
                    yield item.value
                else:
                    self._whole += 1
                    epoch.at = self._whole
                    yield item
            return
        for batch, mark, epoch.tail, epoch.last, own in in_step(
            source, self._transport, rows=self._stream.rows, ending=self._ending
        ):
            if own:
                self._note(mark, epoch)
            yield batch

    def _note(self, mark: Mark | None, epoch: Epoch) -> None:
        if mark is None or mark.taken is None:
            self._whole += 1
            epoch.at = self._whole
            return
        taken, states = self._newest
        taken.update(mark.taken)
        states.update(mark.state or {})
        epoch.at = (dict(taken), dict(states), (mark.stream + 1) % self._readers)

    def entries(self, at: Any) -> dict[str, Any]:
        """As `Course`.

        Collective: with a transport, every rank must call.
        """
        taken, states, following = self._taken, self._states, self._first
        if isinstance(at, int):  # so many whole batches, of which all shards gave their turns
            own = self._stream.own_shards(0, 1)
            own.sort(key=lambda shard: (taken.get(shard, 0), shard))
            given = in_turn(own, at * (self._stream.rows or 1))
            taken = taken | {shard: taken.get(shard, 0) + count for shard, count in given.items()}
        elif at is not None:
            taken, states, following = at
        told = [(taken, states)]
        if self._transport is not None and self._transport.size > 1:
            told = self._transport.all_gather_objects((taken, states))
        most: dict[int, tuple[int, Any]] = {}
        for counts, sources in told:
            for shard, count in counts.items():
                if count >= most.get(shard, (0, None))[0]:
                    most[shard] = count, sources.get(shard)
        return {
            "consumed": sum(count for count, _ in most.values()),
            "taken": {str(shard): count for shard, (count, _) in sorted(most.items())},
            "sources": {str(shard): source for shard, (_, source) in sorted(most.items()) if source is not None},
            "next_stream": following,
        }


def warn_of_replay(samples: int, dataset: Any) -> None:
    """Says what it costs to come back to a place in a stream."""
    warnings.warn(
        f"{type(dataset).__name__} cannot be put at a place: {samples} samples are read again and thrown away to come"
        " back to where the state was taken. A dataset with state_dict and load_state_dict would not need that",
        stacklevel=5,
    )
