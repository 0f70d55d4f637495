"""fp16 with accel ends with the weights, to the bit, that a plain GradScaler gives; overflows included."""

from __future__ import annotations

from typing import Any

import torch
from accel import Accelerator, GradScalerKwargs
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup
from gpu_checks.training import CLASSES, WIDTH, batches, equal, parameters_of, perceptron

STEPS, BATCH, OVERFLOW_AT = 12, 16, 5
SCALER: dict[str, Any] = {"init_scale": 4096.0, "growth_interval": 3}


def run(setup: Setup, findings: Findings) -> None:
    """Trains a model of two halves, each with an optimizer of its own; one step is made to overflow."""
    for name, options in {"foreach": {"foreach": True}, "fused": {"fused": True}}.items():
        with findings.part(f"AdamW, {name}"):
            hand, scale = by_hand(torch.device(setup.kind), options)
            ours, our_scale, skipped = by_accel(setup, options)
            assert skipped == [OVERFLOW_AT], f"steps that were skipped: {skipped}, expected {OVERFLOW_AT}"
            assert our_scale == scale, f"scale {our_scale}, by hand {scale}"
            assert equal(hand, ours), "the weights differ from those by hand"
            findings.facts[f"AdamW, {name}"] = f"equal to the bit after {STEPS} steps, of which one overflowed"


def _halves(options: dict[str, bool], device: torch.device) -> tuple[nn.Module, nn.Module, AdamW, AdamW]:
    first, second = perceptron(seed=0).to(device), nn.Linear(CLASSES, CLASSES).to(device)
    fill = torch.linspace(-1, 1, CLASSES * CLASSES, device=device).reshape(CLASSES, CLASSES)
    with torch.no_grad():
        second.weight.copy_(fill)
        second.bias.zero_()
    made: Any = options
    return first, second, AdamW(first.parameters(), lr=1e-2, **made), AdamW(second.parameters(), lr=1e-3, **made)


def by_hand(device: torch.device, options: dict[str, bool]) -> tuple[list[torch.Tensor], float]:
    """The weights and the scale that torch's own scaler ends with."""
    first, second, *optimizers = _halves(options, device)
    scaler = torch.amp.GradScaler(device.type, **SCALER)
    for number, (inputs, targets) in enumerate(batches(device, STEPS, BATCH, WIDTH)):
        with torch.autocast(device.type, dtype=torch.float16):
            outputs = second(first(inputs))
        loss = cross_entropy(outputs.float(), targets) * (float("inf") if number == OVERFLOW_AT else 1.0)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call] # of torch
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return parameters_of(first) + parameters_of(second), scaler.get_scale()


def by_accel(setup: Setup, options: dict[str, bool]) -> tuple[list[torch.Tensor], float, list[int]]:
    """The weights and the scale that accel ends with, and which steps were skipped."""
    handlers = [GradScalerKwargs(**SCALER)]
    accelerator = Accelerator(cpu=setup.rehearsal, mixed_precision="fp16", kwargs_handlers=handlers)
    first, second, *optimizers = accelerator.prepare(*_halves(options, accelerator.device))
    skipped = []
    for number, (inputs, targets) in enumerate(batches(accelerator.device, STEPS, BATCH, WIDTH)):
        loss = cross_entropy(second(first(inputs)), targets) * (float("inf") if number == OVERFLOW_AT else 1.0)
        accelerator.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        if accelerator.optimizer_step_was_skipped:
            skipped.append(number)
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert accelerator.scaler is not None
    return parameters_of(first) + parameters_of(second), accelerator.scaler.get_scale(), skipped
