"""A training step where accel-rehearse is installed, beside the same step where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from benchmarks.row import Lineup, Repetition, Row, Skipped
from benchmarks.steps import light

PROJECT, PACKAGE = "accel-rehearse", "accel_rehearse"


def _hide() -> None:
    """Lets neither an import nor a search for entry points find the package."""
    sys.modules[PACKAGE] = None  # type: ignore[assignment] # so does Python itself name what is not to be found
    found = metadata.distributions
    metadata.distributions = lambda **asked: (one for one in found(**asked) if one.name != PROJECT)


def _train(hide: Callable[[], None], asked: Connection) -> None:
    """Trains each time that it is asked to, and answers with the seconds of a step."""
    torch.set_num_threads(1)
    hide()
    repeat = light.accel(1)
    while asked.recv():
        asked.send(repeat())


def _in_a_process(hide: Callable[[], None]) -> Repetition:
    context = get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=_train, args=(hide, there), daemon=True).start()

    def repeat() -> float:
        here.send(True)
        seconds: float = here.recv()
        return seconds

    return repeat


def _nothing() -> None:
    pass


def _lineup() -> Lineup:
    if find_spec(PACKAGE) is None:
        raise Skipped(f"pip install ./packages/{PROJECT}")
    return Lineup.of({"raw": partial(_in_a_process, _hide), "accel": partial(_in_a_process, _nothing)})


ROWS = (Row("step, light, with accel-rehearse installed, world 1", _lineup, 1.01),)
