"""Keeps what several readers of a stream deliver in order, and ranks in step, whoever runs out first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from accel_ops import recursively_apply
from accel_ops.batch_size import can_be_cut, cut, samples_in
from accel_state import BatchPadding, Transport

from accel_data.iterable.read_batch import ReadBatch
from accel_data.sharding.rank_slices import Ending

#: what ranks are told to wait in, and where each says how many samples it has
STEP, DETAILS = "next batch of a stream", "samples of a batch of a stream"


def rotated(batches: Iterable[ReadBatch], first: int) -> Iterator[ReadBatch]:
    """The batches of several readers, when it is the turn of reader `first` and torch begins with reader 0."""
    held, previous = list[ReadBatch](), -1
    for batch in batches:
        reader = batch.reader or 0
        if reader <= previous:
            yield from held
            held = []
        previous = reader
        if reader < first:
            held.append(batch)
        else:
            yield batch
    yield from held


def in_step(
    batches: Iterable[ReadBatch], transport: Transport, *, rows: int | None, ending: Ending
) -> Iterator[tuple[ReadBatch, bool]]:
    """The batches of this rank, each with its tail, and whether it is the last; all ranks get equally many.

    A rank that has run out is served samples again, which do not count; with DROP all end with the first. Without
    `rows` batches are what the stream gave, and stay whole.

    Ranks vote on each batch whether they have it, and it is full. They vote on it while it is read ahead: a rank with a
    next batch waits only for ranks that are more than a batch behind.

    Collective: every rank of the transport must call.
    """
    source, drops, start = iter(batches), ending is Ending.DROP, None
    # what makes the end: that the rank with least, or with most, has less than that; -1 stands for no batch
    decisive, least = (min, rows or 0) if drops else (max, 0)
    with transport.votes(STEP) as votes:
        read = next(source, None)
        votes.cast(read is not None and (rows is None or read.samples == rows))
        last = False
        while not last:
            following = next(source, None)
            step = read or ReadBatch(_again(start, rows, ending), None)
            if start is None and step.value is not None:
                start = recursively_apply(torch.clone, step.value)  # a script may change what it was served
            goes_on = following is not None and (rows is None or following.samples == rows)
            # all ranks have this batch; and another one, or if none has to end with the others, a rank has
            if not votes.cast(goes_on) or not (votes.all() if drops else goes_on or votes.any()):
                mine = _real(read, rows), _served(step, rows, ending), _real(following, rows)
                reals, served, following_reals = zip(*transport.all_gather_objects(mine, DETAILS), strict=True)
                if decisive(reals) < least:
                    return
                if min(served) < 0:  # a rank has nothing of its own to serve again
                    sample = transport.broadcast_object(start, served.index(max(served)))
                    again = ReadBatch(_again(sample, rows, ending), None)
                    served = tuple(_served(again, rows, ending) if count < 0 else count for count in served)
                    if step.value is None:
                        start, step = sample, again
                if served != reals or (rows is not None and min(reals) < rows):
                    step.tail = BatchPadding(tuple(max(count, 0) for count in reals), served)
                last = decisive(following_reals) < least
            yield step, last
            read = following


def _again(start: Any, rows: int | None, ending: Ending) -> Any:
    """What a rank that has run out is served; None if it has nothing."""
    short = ending is Ending.EXACT and rows is not None and start is not None and can_be_cut(start)
    return recursively_apply(torch.clone, cut(start, slice(0, 1)) if short else start)


def _real(read: ReadBatch | None, rows: int | None) -> int:
    """Samples of a batch that are no repetitions; -1 without one."""
    if read is not None and rows is None:
        return samples_in(read.value)
    return -1 if read is None else read.samples


def _served(step: ReadBatch, rows: int | None, ending: Ending) -> int:
    """All samples of a batch; -1 without one."""
    if step.value is None:
        return -1
    if rows is None or step.reader is None:
        return samples_in(step.value)
    return rows if ending is Ending.REPEAT else step.samples
