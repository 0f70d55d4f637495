"""Rank 0 fails while a vote on a batch is under way, in which rank 1 votes when Python ends on rank 0."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from torch.utils.data import DataLoader, IterableDataset


class AtTheVeryEnd:
    """Says by a file that Python ends, after all functions for that, and stays there."""

    def __init__(self, file: Path) -> None:
        self.open, self.name, self.flags, self.sleep = os.open, str(file), os.O_CREAT | os.O_WRONLY, time.sleep

    def __del__(self) -> None:
        self.open(self.name, self.flags)
        self.sleep(2)


class Shards(IterableDataset[torch.Tensor]):
    num_shards = 2

    def __init__(self, file: Path) -> None:
        self.file = file

    def shard(self, num_shards: int, index: int) -> "Shards":
        return self

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.ones(1)
        while rank == 1 and not self.file.exists():
            time.sleep(0.01)
        yield torch.ones(1)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    loader = accelerator.prepare(DataLoader(Shards(file), batch_size=1))
    if rank == 0:
        there: Any = sys
        there.kept_until_the_end = AtTheVeryEnd(file)
    for _ in loader:
        raise LookupError("the sample that nobody has")
