"""Time to the first batch when an epoch is taken up far from its start."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.contestants.library import Library
from benchmarks.data import BATCH_SIZE, CountedTable
from benchmarks.row import Lineup, Repetition, Row
from benchmarks.timing import first_batch

SIZE = 12_000_000
CONSUMED = 10_000_000


def _lineup() -> Lineup:
    tables: dict[str, CountedTable] = {}
    repetitions: dict[str, int] = {}

    def loader(name: str) -> DataLoader[Any]:
        table = tables.setdefault(name, CountedTable(SIZE))
        return DataLoader(table, BATCH_SIZE, shuffle=True)

    def counted(name: str, inner: Repetition) -> Repetition:
        tables.setdefault(name, CountedTable(SIZE)).asked = 0  # what it took to find out the state
        repetitions[name] = 0

        def repeat() -> float:
            repetitions[name] += 1
            return inner()

        return repeat

    def resumed(name: str, library: Library) -> Repetition:
        return counted(name, first_batch(library.resumed(lambda: loader(name), consumed=CONSUMED)))

    def said() -> str:
        reads = (f"{name} {tables[name].asked / repetitions[name]:g}" for name in repetitions)
        return "samples read for the first batch: " + ", ".join(reads)

    start = "accel, from the start"
    return Lineup.of(
        {
            start: lambda: counted(start, first_batch(lambda: Accel().prepared(loader(start)))),
            "accel": lambda: resumed("accel", Accel()),
            "accelerate": lambda: resumed("accelerate", Accelerate()),
        },
        remark=said,
    )


ROWS = (Row("first batch at sample 10,000,000 of 12,000,000", _lineup, 1.2, least=7, most=15, warm_up=1),)
