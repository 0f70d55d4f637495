"""What the loop waits for in a call of `log`, beside lines and events that it writes by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import torch

from benchmarks.row import Lineup, Repetition, Row, Skipped

CALLS = 200
#: what a call may cost, and the contestant that takes exactly this
MOST_S = 5e-6
MOST = f"{MOST_S * 1e6:g} µs"
Log = Callable[[dict[str, Any], int], None]


def _values(kind: str) -> dict[str, Any]:
    """Five numbers, or tensors of them."""
    return {f"metric{place}": torch.tensor(0.5 + place) if kind == "tensors" else 0.5 + place for place in range(5)}


def _lines(kind: str) -> tuple[Log, Callable[[], None]]:
    file = (Path(mkdtemp()) / "metrics.jsonl").open("w")

    def log(values: dict[str, Any], step: int) -> None:
        known = {name: value.item() for name, value in values.items()} if kind == "tensors" else values
        file.write(json.dumps({"step": step, **known}) + "\n")
        file.flush()

    return log, file.flush


def _events(kind: str) -> tuple[Log, Callable[[], None]]:
    if find_spec("tensorboard") is None:
        raise Skipped("pip install tensorboard")
    writer = import_module("torch.utils.tensorboard").SummaryWriter(mkdtemp())

    def log(values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return log, writer.flush


def _library(name: str, tracker: str) -> tuple[Log, Callable[[], None]]:
    """`log` of a library, and what waits until all is written.

    Raises: Skipped if the library or the client is not installed, or if the library has no such tracker.
    """
    if name == "accelerate" and tracker == "local":
        raise Skipped("has no tracker that writes lines")
    for package in (name, *(["tensorboard"] if tracker == "tensorboard" else [])):
        if find_spec(package) is None:
            raise Skipped(f"pip install {package}")
    accelerator = import_module(name).Accelerator(cpu=True, log_with=tracker, project_dir=mkdtemp())
    accelerator.init_trackers("project")
    return accelerator.log, partial(accelerator.get_tracker, tracker)


def _row(kind: str, tracker: str) -> Lineup:
    values = _values(kind)
    took: dict[str, list[float]] = {}

    def contestant(name: str, make: Callable[[], tuple[Log, Callable[[], None]]]) -> Repetition:
        log, written = make()

        def repeat() -> float:
            began = perf_counter()
            for step in range(CALLS):
                log(values, step)
            seconds = (perf_counter() - began) / CALLS
            written()  # what a thread does meanwhile is in the time, what it does later is not
            took.setdefault(name, []).append(seconds)
            return seconds

        return repeat

    by_hand = partial(_lines if tracker == "local" else _events, kind)
    makers: dict[str, Callable[[], Repetition]] = {
        "raw": partial(contestant, "raw", by_hand),
        **{name: partial(contestant, name, partial(_library, name, tracker)) for name in ("accel", "accelerate")},
        MOST: lambda: lambda: MOST_S,
    }
    return Lineup.of(
        makers, remark=lambda: ", ".join(f"{name} {median(each) * 1e6:.2f} µs a call" for name, each in took.items())
    )


ROWS = (
    Row("log of 5 numbers, lines of JSON", partial(_row, "numbers", "local"), 1.0, against=MOST),
    Row("log of 5 tensors on the CPU, lines of JSON", partial(_row, "tensors", "local"), 1.0, against=MOST),
    Row("log of 5 numbers, tensorboard", partial(_row, "numbers", "tensorboard"), 1.0, against=MOST),
)
