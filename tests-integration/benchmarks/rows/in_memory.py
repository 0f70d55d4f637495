"""Checkpoints in memory: what they cost a training, and how soon after a kill a job takes its next step."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, run
from time import perf_counter, time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.row import Lineup, Repetition, Row, Skipped
from benchmarks.rows.checkpoint import WIDTH, copy, task, timed

SHARED_MEMORY = Path("/dev/shm")
#: seconds between two checkpoints, of which so many steps are measured
INTERVAL_S, MEASURED = 30.0, 12
#: two processes; rank 1 is killed after step 8, and each start notes when it takes its first step
SCRIPT = """\
import os, signal, sys, time
from pathlib import Path
import torch
from accel import Accelerator, ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset
folder, every = Path(sys.argv[1]), int(sys.argv[2])
accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(folder, automatic_checkpoint_naming=True))
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
again = accelerator.resume() is not None or (folder / "killed").exists()
rank = accelerator.process_index
for step, (inputs,) in enumerate(loader, 1):
    accelerator.backward(model(inputs).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step == 1:
        (folder / ("again" if again else "first")).write_text(str(time.time()))
    if again and step == 2:
        break
    if every and step % every == 0:
        accelerator.save_state()
    time.sleep(0.02)
    if step == 8 and not again:
        if len(sys.argv) > 3:
            break
        if rank == 1:
            (folder / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
"""
ACCEL = ("-m", "accel_launch", "launch", "--cpu", "-n", "2", "--max_restarts", "1")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")


def _training(every: int | None) -> tuple[Any, Repetition]:
    """Some steps with 600 MB of state; the seconds of a whole interval, as the rest of it has no checkpoint."""
    from accel import Accelerator, ProjectConfiguration

    if not os.access(SHARED_MEMORY, os.W_OK):
        raise Skipped(f"there is no {SHARED_MEMORY}")
    folder = Path(tempfile.mkdtemp(prefix="accel-bench-", dir=SHARED_MEMORY))
    os.environ["ACCEL_MEMORY_CHECKPOINTS"] = str(folder)
    owner = Accelerator(
        cpu=True, project_config=ProjectConfiguration(folder / "project", memory_checkpoint_every=every)
    )
    model, optimizer, loader = owner.prepare(
        *task(), DataLoader(TensorDataset(torch.randn(16 * MEASURED, WIDTH)), batch_size=16)
    )
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    owner.resume()

    def steps() -> float:
        began = perf_counter()
        for (inputs,) in loader:
            owner.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return perf_counter() - began

    return owner, steps


def _costs() -> Lineup:
    _, plain = _training(None)
    rest_s = INTERVAL_S - plain()

    def interval(every: int | None) -> Repetition:
        owner, steps = _training(every)

        def repeat() -> float:
            took_s = rest_s + steps()
            if owner.checkpoints.memory is not None:
                owner.checkpoints.memory.wait()
            return took_s

        return repeat

    return Lineup.of({"raw": lambda: interval(None), "accel": lambda: interval(MEASURED)})


def _held() -> Repetition:
    """Seconds for which the loop is held by a checkpoint."""
    owner, steps = _training(MEASURED)
    steps()
    memory = owner.checkpoints.memory
    return timed(memory._save, before=memory.wait)


def _restart(launcher: Sequence[str], every: int, *, bare: bool = False) -> float:
    """Seconds from the kill to the next step; or, of a bare start, from the command to the first step."""
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as name:
        folder, script = Path(name), Path(name) / "train.py"
        script.write_text(SCRIPT)
        note = partial(_noted, folder)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *launcher, str(script), name, str(every), *(["bare"] if bare else [])]
        (folder / "began").write_text(str(time()))
        run(command, check=True, env=environ, stdin=DEVNULL, capture_output=True)
        return note("first") - note("began") if bare else note("again") - note("killed")


def _holds() -> Lineup:
    return Lineup.of({"raw": copy, "accel": _held})


def _noted(folder: Path, name: str) -> float:
    return float((folder / name).read_text())


def _restarts() -> Lineup:
    in_memory = (*ACCEL, "--memory_checkpoint_every", "5")
    return Lineup.of(
        {
            "raw": lambda: partial(_restart, ACCEL, 0, bare=True),
            "accel": lambda: partial(_restart, in_memory, 0),
            "accel from the disk": lambda: partial(_restart, ACCEL, 5),
            "torchrun from the disk": lambda: partial(_restart, TORCHRUN, 5),
        }
    )


ROWS = (
    Row("in memory, the loop held, over a copy", _holds, 1.0, least=5, most=30, warm_up=2),
    Row("in memory, training with 600 MB each 30 s", _costs, 1.02, least=5, most=9, warm_up=2),
    Row("in memory, from a kill to the next step", _restarts, 1.1, least=3, most=7, warm_up=1),
)
