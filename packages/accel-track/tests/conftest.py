"""A run that every tracker is given; `nox -s trackers` has the clients that read it back."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from accel_track import GeneralTracker

STEPS = 100
CONFIG = {"lr": 0.1, "model": {"layers": 2}}
EXPECTED = {
    "loss": [1 / (step + 1) for step in range(STEPS)],
    "rate": [float(step) for step in range(STEPS)],
    "deep/a": [step * 2.0 for step in range(STEPS)],
}


def _write_steps(tracker: GeneralTracker, first: int = 0, end: int = STEPS) -> None:
    for step in range(first, end):
        tracker.log({"loss": 1 / (step + 1), "rate": np.float32(step), "deep": {"a": step * 2}}, step=step)


@pytest.fixture
def expected() -> dict[str, list[float]]:
    """Three metrics of 100 steps, by the names that trackers give them."""
    return EXPECTED


@pytest.fixture
def config() -> dict[str, object]:
    """A configuration with another inside."""
    return CONFIG


@pytest.fixture
def write_steps() -> Callable[..., None]:
    """Logs the metrics of `expected` to a tracker, or those of the steps from one to another."""
    return _write_steps


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, and a home: clients leave files in both."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "COMET_", "CLEARML_"))]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def record_on_two(offline: Path) -> Callable[[str], Path]:
    """Logs the metrics of `expected`, an image and a table to the tracker of a name, on two processes; the folder."""

    def record(name: str) -> Path:
        script = str(Path(__file__).parent / "trackers" / "record_offline.py")
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        done = subprocess.run([sys.executable, *launcher, script, name, "write"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return offline

    return record
