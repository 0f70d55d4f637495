"""The programs of docs/examples/engines on real engines: two workers, one worker, and two of which one is lost."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from accel_testing import stretched
from repository import ROOT
from safetensors.torch import load_file
from torch import Tensor

pytestmark = pytest.mark.skipif("ACCEL_ENGINES" not in os.environ, reason="nox -s engines runs it, with the engines")
PROGRAMS = ROOT / "docs" / "examples" / "engines"
#: so many that a worker can be lost among them
EPOCHS = 20


@dataclass
class Engine:
    """How a program is started, and which of the processes that it starts is a worker."""

    command: list[str]
    is_worker: Callable[[psutil.Process], bool]


def is_worker_of_ray(process: psutil.Process) -> bool:
    return "RayTrainWorker" in " ".join(process.cmdline())


def is_worker_of_spark(process: psutil.Process) -> bool:
    return process.environ().get("RANK") == "1" and not process.children()


ENGINES = {
    "ray": Engine([sys.executable, str(PROGRAMS / "ray_train.py")], is_worker_of_ray),
    "spark": Engine(
        ["spark-submit", "--master", "local[2]", str(PROGRAMS / "spark_torch.py")],
        is_worker_of_spark,
    ),
}


def trained(engine: Engine, output: Path, workers: int, *, lose: bool = False) -> dict[str, Tensor]:
    """The weights of the last epoch, whose number says that no epoch was trained twice."""
    checkpoints = output / "checkpoints"
    command = [*engine.command, "--workers", str(workers), "--epochs", str(EPOCHS), "--output", str(output)]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "RAY_TRAIN_V2_ENABLED": "1"}
    with (
        (output.parent / f"{output.name}.log").open("w+") as log,
        psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ) as job,
    ):
        if lose:
            until = time.monotonic() + stretched(240)
            while not (checkpoints / "checkpoint_2").exists() and job.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            found = [one for one in job.children(recursive=True) if runs_as(engine, one)]
            assert found, said(log.name)
            found[-1].send_signal(signal.SIGKILL)
        assert job.wait(timeout=stretched(300)) == 0, said(log.name)
    newest = max(checkpoints.iterdir(), key=lambda folder: int(folder.name.rpartition("_")[2]))
    assert newest.name == f"checkpoint_{EPOCHS - 1}", said(log.name)
    return load_file(newest / "model.safetensors")


def runs_as(engine: Engine, process: psutil.Process) -> bool:
    try:
        return engine.is_worker(process)
    except psutil.Error:  # it has ended
        return False


def said(log: str) -> str:
    return Path(log).read_text()[-4000:]


@pytest.mark.parametrize("name", ENGINES)
def test_workers_train_as_one_also_if_one_of_them_is_lost(name: str, tmp_path: Path) -> None:
    if name == "spark" and not (importlib.util.find_spec("pyspark") and shutil.which("java")):
        pytest.skip("Spark needs a Java runtime (on Debian: apt install default-jre-headless)")
    engine = ENGINES[name]
    whole = trained(engine, tmp_path / "whole", 2)
    broken = trained(engine, tmp_path / "broken", 2, lose=True)
    assert all(broken[key].equal(tensor) for key, tensor in whole.items())
    alone = trained(engine, tmp_path / "alone", 1)
    for key, tensor in whole.items():
        assert (alone[key] - tensor).abs().max() < 1e-4 * tensor.abs().max(), key
