"""What a checkpoint costs: GB/s, how long an asynchronous save stops the training, and the steps beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from accel import Accelerator
from accel_state import release
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup
from gpu_checks.measure import clean, host_peak, pinned_gib, synchronise
from gpu_checks.training import batches, perceptron

ALONE = 20
#: longer no save is waited for
LONGEST_S = 30.0


def run(setup: Setup, findings: Findings) -> None:
    """Saves twice while training goes on, then once while it waits, and the same by torch.save; loads at last."""
    release()
    accelerator = Accelerator(cpu=setup.rehearsal, mixed_precision="bf16")
    width = setup.size(4096, 64)
    with accelerator.device:
        model = perceptron(width, setup.size(20, 2))
    optimizer = AdamW(model.parameters(), lr=1e-4)
    ready, stepping = accelerator.prepare(model, optimizer)
    ((inputs, targets),) = batches(accelerator.device, 1, setup.size(4096, 8), width)

    def step() -> float:
        began = perf_counter()
        accelerator.backward(cross_entropy(ready(inputs), targets))
        stepping.step()
        stepping.zero_grad()
        synchronise(setup)
        return perf_counter() - began

    for _ in range(3):
        step()
    alone = median(step() for _ in range(setup.size(ALONE, 2)))
    findings.facts["ms of a step alone"] = 1e3 * alone
    with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for name in ("first", "second"):  # the second uses the memory of the first again
            with findings.part(f"asynchronous, {name}"), host_peak() as peak:
                _beside(setup, findings, accelerator, Path(folder) / name, step, alone)
            findings.facts[f"asynchronous, {name}: GiB of the host at the peak"] = peak.gib
        with findings.part("while training waits"):
            _alone(setup, findings, accelerator, Path(folder), model, optimizer)


def _beside(
    setup: Setup,
    findings: Findings,
    accelerator: Accelerator,
    target: Path,
    step: Callable[[], float],
    alone: float,
) -> None:
    name = f"asynchronous, {target.name}"
    before = pinned_gib(setup)
    synchronise(setup)
    began = perf_counter()
    accelerator.save_state(target, asynchronous=True)
    stall = perf_counter() - began
    steps = [step()]
    while not target.is_dir() and perf_counter() - began < LONGEST_S:  # it has its name once it is whole
        steps.append(step())
    took = perf_counter() - began
    accelerator.wait_for_checkpoint()
    size = _gb(target)
    findings.facts |= {
        f"{name}: s until training went on": stall,
        f"{name}: GB/s until then": size / stall,
        f"{name}: GB/s to the disk": size / took,
        f"{name}: a step beside it": f"{median(steps) / alone:.3f} of one alone, the slowest of {len(steps)}"
        f" {max(steps) / alone:.2f}",
        f"{name}: s lost in all": took - len(steps) * alone,
        f"{name}: pinned for a byte": (pinned_gib(setup) - before) * 2**30 / 1e9 / size,
    }


def _alone(
    setup: Setup,
    findings: Findings,
    accelerator: Accelerator,
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    for old in folder.iterdir():
        shutil.rmtree(old)
    clean(setup)
    began = perf_counter()
    accelerator.save_state(folder / "checkpoint")
    saved = perf_counter() - began
    size = _gb(folder / "checkpoint")
    began = perf_counter()
    torch.save([model.state_dict(), optimizer.state_dict()], folder / "plain.pt")
    plain = perf_counter() - began
    began = perf_counter()
    accelerator.load_state(folder / "checkpoint")
    synchronise(setup)
    loaded = perf_counter() - began
    findings.facts |= {
        "GB": size,
        "while training waits": f"saved at {size / saved:.3g} GB/s (torch.save {size / plain:.3g}, which does not wait"
        f" for the disk), loaded at {size / loaded:.3g} GB/s",
    }


def _gb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9
