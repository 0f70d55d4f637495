"""What a stream costs at its start against the number of its files, which are made up."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any

import torch
from accel_data import prepare_data_loader
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from scale.curve import Curve

ROWS, BATCH, WORLD, RANK, BATCHES = 64, 32, 2, 1, 16


class MadeUp(IterableDataset[Tensor]):
    """Files of numbers that nobody wrote; it counts how many are open at a time."""

    open, most_open = 0, 0

    def __init__(self, files: range) -> None:
        self.files = files
        self.num_shards = len(files)

    def shard(self, num_shards: int, index: int) -> MadeUp:
        """A run of the files, one after the other."""
        each, over = divmod(len(self.files), num_shards)
        first = each * index + min(index, over)
        return MadeUp(self.files[first : first + each + (index < over)])

    def __iter__(self) -> Iterator[Tensor]:
        for file in self.files:
            MadeUp.open += 1
            MadeUp.most_open = max(MadeUp.most_open, MadeUp.open)
            try:
                yield from map(torch.tensor, range(file * ROWS, (file + 1) * ROWS))
            finally:
                MadeUp.open -= 1


def _plain(files: int) -> DataLoader[Any]:
    return DataLoader(MadeUp(range(files)).shard(WORLD, RANK), BATCH)


def _accel(files: int) -> DataLoader[Any]:
    return prepare_data_loader(DataLoader(MadeUp(range(files)), BATCH), num_processes=WORLD, process_index=RANK)


LINES: dict[str, Callable[[int], DataLoader[Any]]] = {"plain torch, a share by hand": _plain, "accel": _accel}


def _open(make: Callable[[int], DataLoader[Any]], files: int) -> float:
    gc.collect()
    MadeUp.open = MadeUp.most_open = 0
    for _ in islice(make(files), BATCHES):
        pass
    return float(MadeUp.most_open)


def _milliseconds(make: Callable[[int], DataLoader[Any]], files: int) -> float:
    gc.collect()
    began = perf_counter()
    next(iter(make(files)))
    return 1e3 * (perf_counter() - began)


def _megabytes(make: Callable[[int], DataLoader[Any]], files: int) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        next(iter(make(files)))
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def measure(*, quick: bool) -> list[Curve]:
    """Open files, start and memory of one rank of two, without workers."""
    sizes = (100, 1000) if quick else (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
    rounds = 1 if quick else 5
    for make in LINES.values():
        next(iter(make(8)))  # what the first one imports is not its cost

    def line(cost: Callable[..., float]) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in LINES}
        for size in sizes:
            took = [{name: cost(make, size) for name, make in LINES.items()} for _ in range(rounds)]
            for name in LINES:
                found[name].append((size, median(one[name] for one in took)))
        return found

    x = "files of the stream"
    return [
        Curve("stream-open-files", "Files of a stream that a reader has open", x, "files", line(_open)),
        Curve("stream-start", "From a stream to its first batch", x, "milliseconds", line(_milliseconds)),
        Curve("stream-memory", "Memory until the first batch of a stream", x, "megabytes", line(_megabytes)),
    ]
