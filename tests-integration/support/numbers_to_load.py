"""Numbers for loaders: by index, as a stream, as a stream that can be sharded, and in tars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

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


def write_tars(folder: Path, tars: int, of_each: int) -> str:
    """Writes tar files for webdataset, of numbers that go on from file to file, and returns the folder."""
    import webdataset

    for tar in range(tars):
        with webdataset.TarWriter(str(folder / f"{tar:03d}.tar")) as writer:
            for row in range(of_each):
                at = tar * of_each + row
                writer.write({"__key__": f"{at:06d}", "id.txt": str(at)})
    return str(folder)


def number(sample: dict[str, Any]) -> Tensor:
    """The number of a sample of such a file."""
    return torch.tensor(int(sample["id.txt"]))
