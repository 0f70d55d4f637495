"""Keeps what several readers of a stream deliver in order, and ranks in step, whoever runs out first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from accel_ops import slice_tensors
from accel_state import Tail, Transport

from accel_data.marks import Mark, Marked
from accel_data.plan import Ending
from accel_data.samples import can_be_cut, filled, samples_in


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


class Step(NamedTuple):
    """What a rank serves in one step: a batch, its mark, what is real in it, whether it is the last and its own."""

    batch: Any
    mark: Mark | None
    tail: Tail | None
    last: bool
    own: bool = True


def in_step(batches: Iterable[Any], transport: Transport, *, rows: int | None, ending: Ending) -> Iterator[Step]:
    """The batches of this rank; all ranks get equally many.

    A rank that has run out is served samples again, which do not count; with DROP all end with the first. Without
    `rows` batches are what the stream gave, and stay whole.

    Collective: every rank of the transport must call.
    """
    source = iter(batches)
    item, following = next(source, None), next(source, None)
    start: Any = None
    while True:
        real = _real(item, rows)
        if item is not None:
            batch, mark = (item.value, item.mark) if type(item) is Marked else (item, None)
            start = batch if start is None else start
            if ending is Ending.REPEAT and rows is not None and real < rows:
                batch = filled(batch, start, rows)
        else:
            batch, mark = _again(start, rows, ending), None
        told = transport.all_gather(torch.tensor([[real, _served(batch, real, rows), _real(following, rows)]])).tolist()
        reals, served, following_reals = zip(*told, strict=True)
        least = rows or 1
        if not any(reals) or (ending is Ending.DROP and min(reals) < least):
            return
        if not all(served):  # a rank has nothing of its own to serve again
            sample = transport.broadcast_object(batch, next(rank for rank, one in enumerate(reals) if one))
            start = sample if start is None else start
            batch = _again(start, rows, ending) if item is None else batch
            served = tuple(transport.all_gather(torch.tensor([_served(batch, real, rows)])).tolist())
        tail = None if served == reals else Tail(reals, served)
        last = min(following_reals) < least if ending is Ending.DROP else not any(following_reals)
        yield Step(batch, mark, tail, last, item is not None)
        if last:
            return
        item, following = following, next(source, None)


def _again(start: Any, rows: int | None, ending: Ending) -> Any:
    """What a rank that has run out is served; None where it has nothing."""
    if start is None or rows is None or not can_be_cut(start):
        return start
    return slice_tensors(start, slice(0, 1)) if ending is Ending.EXACT else filled(start, start, rows)


def _real(item: Any, rows: int | None) -> int:
    """Samples of a batch that are no repetitions."""
    if item is None:
        return 0
    if rows is None:
        return samples_in(item.value if type(item) is Marked else item)
    return item.mark.samples if type(item) is Marked else rows


def _served(batch: Any, real: int, rows: int | None) -> int:
    """All samples of a batch; 0 where there is none."""
    if batch is None:
        return 0
    return samples_in(batch) if rows is None or can_be_cut(batch) or not real else real
