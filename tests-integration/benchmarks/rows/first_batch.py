"""Time to the first batch of an epoch: what a library does before it serves anything."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.data import shuffled
from benchmarks.row import Lineup, Repetition, Row
from benchmarks.timing import first_batch


def _lineup(size: int, num_workers: int) -> Lineup:
    def loader() -> DataLoader[Any]:
        return shuffled(size, num_workers=num_workers)

    def of(ready: DataLoader[Any]) -> Repetition:
        return first_batch(lambda: ready)

    return Lineup.of(
        {
            "raw": lambda: of(loader()),
            "accel": lambda: of(Accel().prepared(loader())),
            "accelerate": lambda: of(Accelerate().prepared(loader())),
        }
    )


ROWS = (
    Row("first batch, map, shuffled, 1,000,000 samples", partial(_lineup, 1_000_000, 0), 1.05),
    Row("first batch, map, shuffled, 1,000 samples, 2 workers", partial(_lineup, 1_000, 2), 1.05),
)
