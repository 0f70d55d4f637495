"""Loader workers leave noted signals to the process that they work for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from accel_data.workers import worker_start
from accel_testing import MakePool, stretched
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Noting:
    """A handler that says that workers need not see its signal."""

    shields_workers = True

    def __init__(self) -> None:
        self.came: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came.append(number)


@pytest.fixture
def noted() -> Iterator[Noting]:
    """SIGTERM and SIGUSR1 are noted."""
    noting = Noting()
    before = {number: signal.signal(number, noting) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield noting
    for number, handler in before.items():
        signal.signal(number, handler)


def called(worker_id: int) -> None:
    """A worker_init_fn."""


def test_without_noted_signals_the_function_of_the_script_stays_the_one() -> None:
    assert worker_start(None) is None
    assert worker_start(called) is called


def test_a_handler_of_somebody_else_is_left_to_the_workers() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        assert worker_start(called) is called
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_shield_ignores_noted_signals_then_calls_the_script(noted: Noting) -> None:
    seen: list[int] = []
    shield: Any = worker_start(seen.append)
    assert sorted(shield.signals) == sorted([signal.SIGTERM, signal.SIGUSR1])
    shield(3)
    assert seen == [3]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


class Pids(Dataset[Tensor]):
    """The process that makes each sample, and how it takes SIGTERM."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.02)
        return torch.tensor([os.getpid(), int(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)])


class PidStream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter([Pids()[index] for index in range(6)])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", [Pids(), PidStream()], ids=["map", "stream"])
def test_every_kind_of_loader_shields_its_workers(data: Any, persistent: bool, noted: Noting) -> None:
    """T9: no worker starts here."""
    loader: Any = prepare_data_loader(DataLoader(data, num_workers=2, persistent_workers=persistent))
    assert sorted(loader.worker_init_fn.signals) == sorted([signal.SIGTERM, signal.SIGUSR1])


def remembered(worker_id: int) -> None:
    os.environ["WORKER_ID_OF_THE_SCRIPT"] = str(worker_id)


def shot_at(kind: str, context: str | None, epochs: int, persistent: bool) -> tuple[int, int, set[int], list[int]]:
    """Samples before and after a signal to each worker; whether workers ignore it; and what the main process had."""
    handler = Noting()
    signal.signal(signal.SIGTERM, handler)
    data: Any = Pids() if kind == "map" else PidStream()
    made: Any = DataLoader(
        data,
        1,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=persistent,
        worker_init_fn=remembered,
    )
    loader = prepare_data_loader(made)
    before = after = 0
    ignoring: set[int] = set()
    for epoch in range(epochs):
        for batch in loader:
            pid, ignores = batch[0].tolist()
            ignoring.add(ignores)
            if epoch == 0 and before < 3:
                before += 1
                os.kill(pid, signal.SIGTERM)
            else:
                after += 1
    os.kill(os.getpid(), signal.SIGTERM)
    return before, after, ignoring, handler.came


@pytest.mark.grid(1)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_workers_outlive_a_signal_that_is_noted(kind: str, persistent: bool, world: MakePool) -> None:
    """T9: of every kind of loader; the main process has its own."""
    ((before, after, ignoring, came),) = world(1, join=False).run(shot_at, kind, None, 2, persistent)
    assert (before, before + after) == (3, 24)
    assert (ignoring, came) == ({1}, [signal.SIGTERM])


def test_workers_that_are_spawned_outlive_it_too(forking_python: str) -> None:
    """In a process where this module has a name that a fresh interpreter can import."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_worker_signals as shield\n"
    code += "print(shield.shot_at('map', 'spawn', 1, False)[:3])"
    done = subprocess.run(
        [forking_python, "-c", code], capture_output=True, text=True, timeout=stretched(90), check=False
    )
    assert (done.stdout, done.returncode) == ("(3, 9, {1})\n", 0), done.stderr


ENDS = """
import signal, time
from accel_data import prepare_data_loader
from torch.utils.data import DataLoader
from test_worker_signals import Noting, Pids

class Stuck(Pids):
    def __getitem__(self, index):
        if index == 11:
            time.sleep(60)
        return super().__getitem__(index)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, Noting())
    loader = prepare_data_loader(DataLoader({data}(), 1, num_workers=2, persistent_workers={persistent}))
    for number, batch in enumerate(loader):
        if number == {last}:
            break
    {held}
    print("last line", flush=True)
"""


@pytest.mark.grid(1)
@pytest.mark.parametrize("last", [3, 99])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_process_whose_workers_ignore_signals_ends(persistent: bool, last: int, forking_python: str) -> None:
    """Nobody waits for workers that are told to end by a signal that they leave to others."""
    code = ENDS.format(data="Pids", persistent=persistent, last=last, held="")
    assert ended_after(code, forking_python) == ("last line\n", "", 0)


def test_a_process_whose_worker_is_stuck_ends() -> None:
    code = ENDS.format(data="Stuck", persistent=False, last=8, held="held = iter(loader); next(held)")
    assert ended_after(code) == ("last line\n", "", 0)


def ended_after(code: str, python: str = sys.executable) -> tuple[str, str, int]:
    """What a script prints, and how it ends by itself."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=stretched(40), check=False, env=environ
    )
    return done.stdout, done.stderr, done.returncode
