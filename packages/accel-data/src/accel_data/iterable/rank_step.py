"""Keep the batches of several readers in order, and give all ranks equally many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from accel_comm import Transport
from accel_ops import recursively_apply
from accel_ops.batch_size import can_be_cut, cut, samples_in
from accel_state import BatchPadding

from accel_data.iterable.read_batch import ReadBatch
from accel_data.sharding.rank_slices import Ending

#: names of the exchanges: the vote on a batch, and the samples that each rank has
STEP, DETAILS = "next batch of a stream", "samples of a batch of a stream"


def rotated(batches: Iterable[ReadBatch], first: int) -> Iterator[ReadBatch]:
    """Restore the order of batches if reader `first` is next, but torch begins with reader 0.

    Args:
        batches: The batches in the order of torch.
        first: The reader whose turn it is.
    """
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
    """Yield the batches of this rank until the data of all ranks ends, with a flag for the last one.

    A rank that has run out is served samples again, which do not count. With `Ending.DROP` all ranks end with the
    first. Ranks vote on whether each has a full next batch. They vote while that batch is read ahead, so a
    rank waits only for ranks that are more than a batch behind. With `Ending.DROP` it waits for this very vote, as
    the next batch of any rank decides whether this one is the last, and no more than one is read ahead.

    Args:
        batches: The batches of this rank.
        transport: Transport of the ranks that read shards of the stream.
        rows: Samples of a full batch, or None if batches are elements of the stream, which stay whole.
        ending: What happens to samples that do not fill a round of all ranks.

    Yields:
        A batch with its tail, and whether it is the last one.

    Collective:
        Every rank of the transport must call.
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
    """Return what a rank that has run out is served, or None if it has nothing."""
    short = ending is Ending.EXACT and rows is not None and start is not None and can_be_cut(start)
    return recursively_apply(torch.clone, cut(start, slice(0, 1)) if short else start)


def _real(read: ReadBatch | None, rows: int | None) -> int:
    """Return the number of samples of a batch that are no repetitions, and -1 without a batch."""
    if read is not None and rows is None:
        return samples_in(read.value)
    return -1 if read is None else read.samples


def _served(step: ReadBatch, rows: int | None, ending: Ending) -> int:
    """Return the number of all samples of a batch, and -1 without a batch."""
    if step.value is None:
        return -1
    if rows is None or step.reader is None:
        return samples_in(step.value)
    return rows if ending is Ending.REPEAT else step.samples
