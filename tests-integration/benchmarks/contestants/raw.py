"""Hand-written PyTorch: what a careful person writes who needs one rank's share of one kind of loader, and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from benchmarks.data import BATCH_SIZE, ShardableStream, Stream


class ShuffledShare(Sampler[list[int]]):
    """Every `world`-th batch of one shuffled order; nobody else's batch is made."""

    def __init__(self, size: int, *, world: int, rank: int) -> None:
        self.size = size
        self.world = world
        self.rank = rank
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return self.size // (BATCH_SIZE * self.world)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size, generator=self.generator).tolist()
        for start in range(self.rank * BATCH_SIZE, self.size - BATCH_SIZE + 1, self.world * BATCH_SIZE):
            yield order[start : start + BATCH_SIZE]


class EveryNthBatch(Sampler[list[int]]):
    """Every `world`-th batch of a batch sampler."""

    def __init__(self, batches: Sampler[list[int]], *, world: int, rank: int) -> None:
        self.batches = batches
        self.world = world
        self.rank = rank

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batches), self.rank, None, self.world)


class SliceOfRounds(IterableDataset[Any]):
    """This rank's batch of each round of a stream; the others' samples are read and let go."""

    def __init__(self, stream: Stream, *, world: int, rank: int) -> None:
        self.stream = stream
        self.world = world
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.stream)
        others = (self.world - 1) * BATCH_SIZE
        deque(islice(stream, self.rank * BATCH_SIZE), maxlen=0)
        while mine := list(islice(stream, BATCH_SIZE)):
            yield from mine
            deque(islice(stream, others), maxlen=0)


def shuffled_share(loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
    """The share of a loader that shuffles."""
    dataset: Any = loader.dataset
    return DataLoader(dataset, batch_sampler=ShuffledShare(len(dataset), world=world, rank=rank))


def batches_share(loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
    """The share of a loader with a custom batch sampler."""
    batches: Any = loader.batch_sampler
    return DataLoader(loader.dataset, batch_sampler=EveryNthBatch(batches, world=world, rank=rank))


def stream_share(loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
    """The share of a loader of a stream."""
    stream: Any = loader.dataset
    return DataLoader(SliceOfRounds(stream, world=world, rank=rank), BATCH_SIZE)


def shard_share(loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
    """The share of a loader of a stream that can shard."""
    stream: Any = loader.dataset
    part: ShardableStream = stream.shard(world, rank)
    return DataLoader(part, BATCH_SIZE)
