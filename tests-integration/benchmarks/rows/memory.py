"""Peak memory of one rank that loads data, in a process of its own for each repetition."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.data import shuffled
from benchmarks.row import Lineup, Repetition, Row, Skipped, Unit

SAMPLES = 10_000_000
BATCHES = 100
WORLD = 8
STATUS = Path("/proc/self/status")


def _plain() -> DataLoader[Any]:
    return shuffled(SAMPLES)


def _accel() -> DataLoader[Any]:
    return Accel().share(shuffled(SAMPLES), world=WORLD, rank=1)


def _accelerate() -> DataLoader[Any]:
    return Accelerate().share(shuffled(SAMPLES), world=WORLD, rank=1)


def peak_bytes(make: Callable[[], DataLoader[Any]], answer: Connection) -> None:
    """Sends the most resident memory that this process has had, once it has loaded some batches."""
    for _ in islice(make(), BATCHES):
        pass
    # not getrusage: its maximum is handed down from the process that started this one
    found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), flags=re.MULTILINE)
    answer.send(int(found.group(1)) * 1024 if found is not None else None)


def _in_a_process(make: Callable[[], DataLoader[Any]]) -> Repetition:
    make()  # where it cannot take part, this says so

    def repeat() -> float:
        context = get_context("spawn")
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=peak_bytes, args=(make, send))
        process.start()
        send.close()
        peak: int = receive.recv()
        process.join()
        return float(peak)

    return repeat


def _lineup() -> Lineup:
    if not STATUS.exists():
        raise Skipped(f"peak memory is read from {STATUS}, which this system does not have")
    contestants = {"raw": _plain, "accel": _accel, "accelerate": _accelerate}
    return Lineup.of({name: partial(_in_a_process, make) for name, make in contestants.items()})


ROWS = (
    Row(
        "peak memory, map, shuffled, 10,000,000 samples, rank of 8",
        _lineup,
        1.3,
        unit=Unit.BYTES,
        least=3,
        most=3,
        warm_up=0,
    ),
)
