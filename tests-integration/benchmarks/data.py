"""Tiny samples: datasets and a batch sampler that cost next to nothing, so that what a loader costs shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

BATCH_SIZE = 32
FEATURES = 8
DISTINCT = 1024

Sample = tuple[Tensor, int]


class Table(Dataset[Sample]):
    """A small tensor and its number, for each of `size` numbers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows = torch.zeros(DISTINCT, FEATURES)
        # CPython 3.11 reads attributes of objects whose __dict__ was looked at, as by pickle or a check, with other
        # instructions, and a method that serves both kinds in turn is slow for one of them
        vars(self)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        return self.rows[index % DISTINCT], index


class CountedTable(Table):
    """A table that knows how often it was asked."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.asked = 0

    def __getitem__(self, index: int) -> Sample:
        self.asked += 1
        return self.rows[index % DISTINCT], index


class Stream(IterableDataset[Sample]):
    """The same tensor with the numbers 0 to size - 1, one after the other."""

    def __init__(self, size: int) -> None:
        self.numbers = range(size)
        self.row = torch.zeros(FEATURES)

    def __iter__(self) -> Iterator[Sample]:
        row = self.row
        for number in self.numbers:
            yield row, number


class ShardableStream(Stream):
    """A stream that can give away every n-th sample without reading the others."""

    def shard(self, num_shards: int, index: int) -> ShardableStream:
        """Samples index, index + num_shards, index + 2 * num_shards and so on."""
        part = ShardableStream(0)
        part.numbers = self.numbers[index::num_shards]
        return part


class Blocks(Sampler[list[int]]):
    """Batches of neighbouring numbers: a batch sampler such as users write, with the attributes that torch's has."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batch_size = BATCH_SIZE
        self.drop_last = True

    def __len__(self) -> int:
        return self.size // BATCH_SIZE

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.size - BATCH_SIZE + 1, BATCH_SIZE):
            yield list(range(start, start + BATCH_SIZE))


def shuffled(size: int, *, num_workers: int = 0) -> DataLoader[Any]:
    """A map-style loader that shuffles by a generator of its own, as ranks need who agree on no other."""
    generator = torch.Generator().manual_seed(0)
    return DataLoader(Table(size), BATCH_SIZE, shuffle=True, generator=generator, num_workers=num_workers)


def in_blocks(size: int) -> DataLoader[Any]:
    """A map-style loader with a custom batch sampler."""
    return DataLoader(Table(size), batch_sampler=Blocks(size))


def streamed(size: int) -> DataLoader[Any]:
    """A loader of a stream."""
    return DataLoader(Stream(size), BATCH_SIZE)


def stream_that_shards(size: int) -> DataLoader[Any]:
    """A loader of a stream that can shard."""
    return DataLoader(ShardableStream(size), BATCH_SIZE)
