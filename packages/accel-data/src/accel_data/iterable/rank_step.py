"""Keeps what several readers of a stream deliver in order, and ranks in step, whoever runs out first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from accel_ops import slice_tensors
from accel_state import Tail, Transport

from accel_data.iterable.batch_size import can_be_cut, filled, samples_in
from accel_data.iterable.read_batch import ReadBatch
from accel_data.sharding.rank_slices import Ending

#: what ranks are told to wait in
STEP = "next batch of a stream"


def rotated(batches: Iterable[ReadBatch], first: int) -> Iterator[ReadBatch]:
    """The batches of several readers, when it is the turn of reader `first` and torch begins with reader 0."""
    held: list[ReadBatch] = []
    previous = -1
    for batch in batches:
        if batch.reader <= previous:
            yield from held
            held = []
        previous = batch.reader
        if batch.reader < first:
            held.append(batch)
        else:
            yield batch
    yield from held


class RankStep(NamedTuple):
    """What a rank serves in one step: a batch, how it was read if it is its own, what is real, if it is the last."""

    batch: Any
    read: ReadBatch | None
    tail: Tail | None
    last: bool


def in_step(
    batches: Iterable[ReadBatch], transport: Transport, *, rows: int | None, ending: Ending
) -> Iterator[RankStep]:
    """The batches of this rank; all ranks get equally many.

    A rank that has run out is served samples again, which do not count; with DROP all end with the first. Without
    `rows` batches are what the stream gave, and stay whole.

    Collective: every rank of the transport must call.
    """
    source = iter(batches)
    read, following = next(source, None), next(source, None)
    least = rows or 0
    start: Any = None
    while True:
        real = _real(read, rows)
        if read is not None:
            batch, read.value = read.value, None
            start = batch if start is None else start
            if ending is Ending.REPEAT and rows is not None and real < rows:
                batch = filled(batch, start, rows)
        else:
            batch = _again(start, rows, ending)
        mine = (
            real,
            _served(batch, real, rows),
            _real(following, rows),
            read is None,
            batch is None,
            following is None,
        )
        told = transport.all_gather_objects(mine, STEP)
        reals, served, following_reals, over, empty, followed_by_none = zip(*told, strict=True)
        if all(over) or (ending is Ending.DROP and (any(over) or min(reals) < least)):
            return
        if any(empty):  # a rank has nothing of its own to serve again
            sample = transport.broadcast_object(batch, over.index(False))
            start = sample if start is None else start
            batch = _again(start, rows, ending) if read is None else batch
            served = tuple(transport.all_gather_objects(_served(batch, real, rows), STEP))
        tail = None if served == reals and (rows is None or min(reals) == rows) else Tail(reals, served)
        last = all(followed_by_none)
        if ending is Ending.DROP:
            last = any(followed_by_none) or min(following_reals) < least
        yield RankStep(batch, read, tail, last)
        if last:
            return
        read, following = following, next(source, None)


def _again(start: Any, rows: int | None, ending: Ending) -> Any:
    """What a rank that has run out is served; None if it has nothing."""
    if start is None or rows is None or not can_be_cut(start):
        return start
    return slice_tensors(start, slice(0, 1)) if ending is Ending.EXACT else filled(start, start, rows)


def _real(read: ReadBatch | None, rows: int | None) -> int:
    """Samples of a batch that are no repetitions."""
    if read is None:
        return 0
    return samples_in(read.value) if rows is None else read.samples


def _served(batch: Any, real: int, rows: int | None) -> int:
    """All samples of a batch; 0 if there is none."""
    if batch is None:
        return 0
    return samples_in(batch) if rows is None or can_be_cut(batch) or not real else real
