"""float8 products are faster than those of bfloat16, and training by them learns about as well, with any rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from accel import Accelerator
from accel_amp.precisions.fp8 import CAPABILITY, with_float8
from accel_state import release
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup, Skipped
from gpu_checks.measure import interleaved
from gpu_checks.training import batches, perceptron

STEPS, CLOSE = 20, 0.1


def run(setup: Setup, findings: Findings) -> None:
    """Compares products, and trains on batches whose rows do not divide by 16; a rehearsal emulates float8."""
    with findings.part("products"):
        _products(setup, findings)
    if find_spec("torchao") is None:
        raise Skipped("torchao is not installed, and accel's fp8 trains by it")
    if not setup.rehearsal and torch.cuda.get_device_capability() < CAPABILITY:
        raise Skipped(f"needs compute capability {'.'.join(map(str, CAPABILITY))}")
    for rows in (32, 17):
        with findings.part(f"batches of {rows}"):
            ours, reference = _losses(setup, "fp8", rows), _losses(setup, "bf16", rows)
            findings.facts[f"batches of {rows}"] = f"loss {ours[0]:.3f} to {ours[-1]:.3f}, in bf16 {reference[-1]:.3f}"
            assert ours[-1] < ours[0], "it does not learn"
            assert abs(ours[-1] - reference[-1]) < CLOSE, "it learns otherwise than bf16"


def _products(setup: Setup, findings: Findings) -> None:
    """How much faster torch alone multiplies float8 numbers, with scales that are known, which bounds any training."""
    setup.need_cuda()
    side, scale = 8192, torch.ones((), device=setup.kind)
    one, other = (torch.randn(side, side, device=setup.kind).bfloat16() for _ in range(2))
    halves = one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn).t()
    products: dict[str, Callable[[], object]] = {
        "bf16": lambda: one @ other.t(),
        "float8": lambda: torch._scaled_mm(
            *halves, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
    }
    for product in products.values():
        product()
    cost = interleaved(setup, products)
    rates = {name: 2 * side**3 / (1e-3 * it.ms) / 1e12 for name, it in cost.items()}
    findings.facts["products"] = ", ".join(f"{name} {rate:.0f} TFLOP/s" for name, rate in rates.items())


def _losses(setup: Setup, precision: str, rows: int) -> list[float]:
    release()
    emulated = setup.rehearsal and precision == "fp8"  # the CPU has no products of float8
    accelerator = Accelerator(cpu=setup.rehearsal, mixed_precision="bf16" if emulated else precision)
    bare: nn.Module = perceptron(depth=3).to(accelerator.device)
    if emulated:
        bare = with_float8(bare, emulate=True)
    model, optimizer = accelerator.prepare(bare, AdamW(bare.parameters(), lr=1e-3))
    data, losses = batches(accelerator.device, 2, rows), []
    for step in range(STEPS):
        inputs, targets = data[step % len(data)]
        loss = cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
