"""Numbers for loaders: by index, as a stream, and as a stream that can be sharded at its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset


class Numbers(Dataset[Tensor]):
    """Item i is i; a list of indices is a batch, as it is for a loader that does not batch by itself."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int | list[int]) -> Tensor:
        return torch.tensor(index)


class NumberStream(IterableDataset[Tensor]):
    """The given numbers, one after the other."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, self.numbers)


class ShardableStream(NumberStream):
    """A stream of which a shard is every n-th number."""

    def shard(self, num_shards: int, index: int) -> Self:
        return type(self)(self.numbers[index::num_shards])
