"""A checkpoint that is written while training goes on holds what was there before, and continues to the bit."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.utils.data import DataLoader

from gpu_checks.check import Findings, Setup
from gpu_checks.training import equal, parameters_of, perceptron, samples

STEPS, SAVE_AFTER, BATCH = 6, 3, 32


def run(setup: Setup, findings: Findings) -> None:
    """Saves three steps into an epoch, trains three more meanwhile; a second model loads, and trains the same three."""
    width, depth = setup.size(4096, 64), setup.size(20, 2)
    with TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        losses, weights = trained(setup, width, depth, Path(folder), findings)
        again, weights_again = continued(setup, width, depth, Path(folder), findings)
    assert again == losses, f"losses after the resume {again}, without it {losses}"
    assert equal(weights, weights_again), "the weights after the resume differ from those without it"
    findings.facts["resumed"] = "equal to the bit, with dropout"


def _parts(setup: Setup, width: int, depth: int, seed: int) -> tuple[Accelerator, Any, Any, Any]:
    accelerator = Accelerator(cpu=setup.rehearsal)
    set_seed(seed)
    with accelerator.device:
        model = perceptron(width, depth, dropout=0.1, seed=seed)
    loader = DataLoader(samples(STEPS * BATCH, width), BATCH, shuffle=True)
    return accelerator, *accelerator.prepare(model, AdamW(model.parameters(), lr=1e-4), loader)


def _step(accelerator: Accelerator, model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
    loss = cross_entropy(model(batch[0]), batch[1])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def trained(
    setup: Setup, width: int, depth: int, folder: Path, findings: Findings
) -> tuple[list[float], list[torch.Tensor]]:
    """The losses after the save, and the last weights."""
    accelerator, model, optimizer, loader = _parts(setup, width, depth, seed=0)
    losses = []
    for number, batch in enumerate(loader, start=1):
        losses.append(_step(accelerator, model, optimizer, batch))
        if number == SAVE_AFTER:
            _synchronise(setup)
            began = perf_counter()
            accelerator.save_state(folder / "checkpoint", asynchronous=True)
            findings.facts["seconds until training went on"] = perf_counter() - began
    weights = parameters_of(model)
    accelerator.wait_for_checkpoint()
    findings.facts["seconds until it was on the disk"] = perf_counter() - began
    size = sum(path.stat().st_size for path in (folder / "checkpoint").rglob("*") if path.is_file())
    findings.facts["GB"] = size / 1e9
    accelerator.free_memory()
    return torch.stack(losses[SAVE_AFTER:]).tolist(), weights


def continued(
    setup: Setup, width: int, depth: int, folder: Path, findings: Findings
) -> tuple[list[float], list[torch.Tensor]]:
    """The same of a model that began with other numbers, and loaded the checkpoint."""
    accelerator, model, optimizer, loader = _parts(setup, width, depth, seed=1)
    began = perf_counter()
    accelerator.load_state(folder / "checkpoint")
    _synchronise(setup)
    findings.facts["seconds to load"] = perf_counter() - began
    losses = [_step(accelerator, model, optimizer, batch) for batch in loader]
    assert len(losses) == STEPS - SAVE_AFTER, f"{len(losses)} batches were left of {STEPS}"
    return torch.stack(losses).tolist(), parameters_of(model)


def _synchronise(setup: Setup) -> None:
    if not setup.rehearsal:
        torch.cuda.synchronize()
