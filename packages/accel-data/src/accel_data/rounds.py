"""What rank 0 sends of each round when it reads for all: a part for every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accel_ops import concatenate, find_batch_size, ignorant_find_batch_size, slice_tensors
from accel_state import Tail

from accel_data.plan import Ending


@dataclass(frozen=True, slots=True)
class Round:
    """One batch of the whole job: the parts of ranks 1 and on, the end of the data, or why there is no more."""

    parts: list[Any] | None = None
    tail: Tail | None = None
    last: bool = False
    failure: str | None = None


def parts_of(batches: list[Any], start: list[Any], world: int, ending: Ending) -> tuple[list[Any], Tail | None]:
    """A part of the round for each rank, and what is real in them.

    Whole batches of one size are handed on as they are; others are joined and divided evenly. Batches that do not fit
    together are handed on whole, and a rank for which none is left is served the first one again.
    """
    sizes = [ignorant_find_batch_size(batch) for batch in batches]
    if len(batches) == world and len(set(sizes)) == 1:
        return batches, None
    try:
        whole = concatenate(batches) if len(batches) > 1 else batches[0]
        first = concatenate(start) if len(start) > 1 else start[0]
        return _divided(whole, first, world, ending)
    except (RuntimeError, TypeError, ValueError):
        # of different shapes, or of things that cannot be divided
        real = [size or 1 for size in sizes] + [0] * (world - len(batches))
        parts = batches + [batches[0]] * (world - len(batches))
        served = [ignorant_find_batch_size(part) or 1 for part in parts]
        return parts, Tail(tuple(real), tuple(served)) if len(batches) < world else None


def _divided(whole: Any, first: Any, world: int, ending: Ending) -> tuple[list[Any], Tail | None]:
    real = find_batch_size(whole)
    bounds = [rank * real // world for rank in range(world + 1)]
    rows = -(-real // world)
    if ending is Ending.EXACT and real < rows * world:
        counts = tuple(bounds[rank + 1] - bounds[rank] for rank in range(world))
        parts = [
            slice_tensors(whole, slice(bounds[rank], bounds[rank + 1]) if counts[rank] else slice(0, 1))
            for rank in range(world)
        ]
        return parts, Tail(counts, tuple(max(count, 1) for count in counts))
    tail = None
    if real < rows * world:
        tail = Tail(tuple(min(max(real - rank * rows, 0), rows) for rank in range(world)), (rows,) * world)
        while (have := find_batch_size(whole)) < rows * world:
            whole = concatenate([whole, slice_tensors(first, slice(0, rows * world - have))])
    return [slice_tensors(whole, slice(rank * rows, (rank + 1) * rows)) for rank in range(world)], tail
