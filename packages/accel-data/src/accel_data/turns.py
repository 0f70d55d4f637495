"""Keeps what several readers of a stream deliver in order, and ranks in step, whoever runs out first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from accel_ops import concatenate, ignorant_find_batch_size, slice_tensors
from accel_state import Tail, Transport

from accel_data.marks import Mark, Marked
from accel_data.plan import Ending


def rotated(batches: Iterable[Any], first: int) -> Iterator[Any]:
    """The batches of several readers, when it is the turn of reader `first` and torch begins with reader 0."""
    held: list[Any] = []
    previous = -1
    for batch in batches:
        if batch.mark.stream <= previous:
            yield from held
            held = []
        previous = batch.mark.stream
        if batch.mark.stream < first:
            held.append(batch)
        else:
            yield batch
    yield from held


def in_step(batches: Iterable[Any], transport: Transport, *, rows: int, ending: Ending) -> Iterator[tuple[Any, bool]]:
    """This rank's batches, and whether each is the last of all ranks; all ranks get equally many.

    A rank that has run out is served samples again, which are marked as such; with DROP all end with the first.

    Raises: ValueError when a rank has nothing at all.
    Collective: every rank of the transport must call.
    """
    source = iter(batches)
    start: Any = None
    item, following = next(source, None), next(source, None)
    while True:
        counts = [_count(one, rows) for one in (item, following)]
        told = transport.all_gather(torch.tensor([counts]))
        real, next_real = tuple(told[:, 0].tolist()), told[:, 1].tolist()
        short = min(real) < rows
        if not any(real) or (short and ending is Ending.DROP):
            return
        if item is None and start is None:
            raise ValueError(
                f"rank {transport.rank} of {transport.size} has not one sample: the shards of the stream that it reads"
                " are empty. Give the stream more shards, or use dispatch_batches=True"
            )
        batch, mark = (item.value, item.mark) if type(item) is Marked else (item, Mark(samples=counts[0]))
        batch = start if item is None else batch
        start = batch if start is None else start
        if short and ending is Ending.EXACT:
            batch = batch if item is not None else slice_tensors(start, slice(0, 1))
            mark = mark._replace(tail=Tail(real, tuple(max(one, 1) for one in real)))
        elif short:
            batch = filled(batch, counts[0], start, rows)
            mark = mark._replace(tail=Tail(real, (rows,) * len(real)))
        last = min(next_real) < rows if ending is Ending.DROP else not any(next_real)
        yield Marked(batch, mark) if short or type(item) is Marked else batch, last
        if last:
            return
        item, following = following, next(source, None)


def filled(batch: Any, real: int, start: Any, rows: int) -> Any:
    """`batch`, of which `real` samples count, with samples of `start` up to `rows`; as it is where that cannot be."""
    if ignorant_find_batch_size(batch) is None:
        return batch
    batch = slice_tensors(batch, slice(0, real))
    have = real
    while have < rows:
        more = slice_tensors(start, slice(0, rows - have))
        batch = concatenate([batch, more])
        have = have + (ignorant_find_batch_size(more) or rows)
    return batch


def _count(batch: Any, rows: int) -> int:
    if batch is None:
        return 0
    return batch.mark.samples if type(batch) is Marked else rows
