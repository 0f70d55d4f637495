"""Weights that come from the host while a model computes: GB/s against a plain copy and Accelerate, and host memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from gpu_checks.check import Findings, Setup, Skipped
from gpu_checks.measure import clean, host_peak, pinned_gib, synchronise

#: passes before the measured ones: the order of layers is learned in them; and measured passes
LEARN, PASSES = 2, 5
FEW, MANY = 8, 8192
Offload = Callable[[nn.Module, torch.device], nn.Module]


def run(setup: Setup, findings: Findings) -> None:
    """Measures copies alone and the model on the device, and then a pass of the model with its weights on the host."""
    device = torch.device(setup.kind, 0) if not setup.rehearsal else torch.device("cpu")
    width, layers = setup.size(4096, 32), setup.size(48, 3)
    gb = layers * width * width * 2 / 1e9
    findings.facts["GB of weights"] = gb
    inputs = {rows: torch.randn(rows, width, device=device).bfloat16() for rows in (FEW, setup.size(MANY, 16))}
    with findings.part("copies alone"):
        copied = _copied(setup, width, layers, device)
        findings.facts["copies alone"] = f"{gb / copied:.3g} GB/s from pinned memory"
    expected, resident = dict[int, Tensor](), dict[int, float]()
    with findings.part("on the device"), torch.no_grad():
        model: nn.Module = _model(width, layers, device)
        for rows, batch in inputs.items():
            expected[rows] = model(batch).cpu()
            resident[rows] = _seconds(setup, model, batch)
            findings.facts[f"on the device, {rows} rows"] = f"{1e3 * resident[rows]:.3g} ms"
        model = nn.Identity()  # which drops the other
    for name, offload in {"accel": _by_accel, "Accelerate": _by_accelerate}.items():
        with findings.part(name), torch.no_grad():
            clean(setup)
            before = pinned_gib(setup)
            with host_peak() as peak:
                model = offload(_model(width, layers, device).to("cpu"), device)
                seen = {rows: model(batch).cpu() for rows, batch in inputs.items()}
            held = pinned_gib(setup) - before
            findings.facts[f"{name}: host memory"] = (
                f"{peak.gib * 2**30 / 1e9 / gb:.2f} of the weights at the peak, {held * 2**30 / 1e9 / gb:.2f} pinned"
            )
            for rows, batch in inputs.items():
                took = _seconds(setup, model, batch)
                findings.facts[f"{name}, {rows} rows"] = (
                    f"{1e3 * took:.3g} ms, {gb / took:.3g} GB/s, {took / max(resident[rows], copied):.2f} of the longer"
                    " of copies and products"
                )
            if not setup.rehearsal:
                torch.cuda.reset_peak_memory_stats()
                model(inputs[FEW])
                findings.facts[f"{name}: GiB on the GPU"] = torch.cuda.max_memory_allocated() / 2**30
            wrong = [rows for rows, outputs in seen.items() if not torch.equal(outputs, expected[rows])]
            model = nn.Identity()
            assert not wrong, f"outputs for {wrong} rows differ from those of the model on the device"


def _model(width: int, layers: int, device: torch.device) -> nn.Sequential:
    """Linear layers that keep the size of what passes through; they are made on the device, which is faster."""
    torch.manual_seed(0)
    with device:
        made = [nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers)]
    for layer in made:
        nn.init.normal_(layer.weight, std=width**-0.5)
    return nn.Sequential(*made).requires_grad_(False)


def _seconds(setup: Setup, model: nn.Module, batch: Tensor) -> float:
    """Seconds of a pass, the median of several."""
    took = []
    for number in range(LEARN + PASSES):
        synchronise(setup)
        began = perf_counter()
        model(batch)
        synchronise(setup)
        if number >= LEARN:
            took.append(perf_counter() - began)
    return median(took)


def _copied(setup: Setup, width: int, layers: int, device: torch.device) -> float:
    """Seconds in which the bytes of all weights are copied from pinned memory, layer by layer."""
    pin = not setup.rehearsal
    sources = [torch.empty(width, width, dtype=torch.bfloat16, device="cpu", pin_memory=pin) for _ in range(4)]
    targets = [torch.empty(width, width, dtype=torch.bfloat16, device=device) for _ in range(2)]
    took = []
    for _ in range(PASSES):
        synchronise(setup)
        began = perf_counter()
        for layer in range(layers):
            targets[layer % 2].copy_(sources[layer % 4], non_blocking=True)
        synchronise(setup)
        took.append(perf_counter() - began)
    return median(took)


def _by_accel(model: nn.Module, device: torch.device) -> nn.Module:
    from accel import cpu_offload

    return cpu_offload(model, device)


def _by_accelerate(model: nn.Module, device: torch.device) -> nn.Module:
    if find_spec("accelerate") is None:
        raise Skipped("accelerate is not installed")
    from accelerate import cpu_offload

    offloaded: Any = cpu_offload(model, device)
    made: nn.Module = offloaded
    return made
