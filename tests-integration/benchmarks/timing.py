"""How long a loader takes: per batch in its steady state, and to its first batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count, islice
from time import perf_counter, process_time
from typing import Any

from benchmarks.row import Repetition

BATCHES = 200
#: Batches that an epoch has beyond those that are timed: the first one, and what loaders read ahead.
SPARE = 8


def per_batch(
    loader: Iterable[Any], *, batches: int = BATCHES, set_epoch: Callable[[int], None] | None = None
) -> Repetition:
    """Processor seconds of this process for a batch of its own, after the first one of a new pass."""
    epochs = count()

    def repeat() -> float:
        epoch = next(epochs)
        if set_epoch is not None:
            set_epoch(epoch)
        stream = iter(loader)
        next(stream)
        seen = 0
        began = process_time()
        for seen, _ in enumerate(islice(stream, batches), start=1):  # noqa: B007 - read after the loop
            pass
        took = process_time() - began
        if seen != batches:
            raise RuntimeError(f"asked for {batches} batches after the first, the epoch had {seen}")
        return took / batches

    return repeat


def first_batch(start: Callable[[], Iterable[Any]]) -> Repetition:
    """Seconds from `start` to the first batch of the loader that it returns."""

    def repeat() -> float:
        began = perf_counter()
        stream = iter(start())
        next(stream)
        return perf_counter() - began

    return repeat
