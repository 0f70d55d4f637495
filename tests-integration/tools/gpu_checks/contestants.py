"""One training step of a model, by hand and with each library, as its documentation writes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from gpu_checks.check import Skipped

Step = Callable[[Tensor, Tensor], None]
Contestant = Callable[[nn.Module, Optimizer, str, bool], Step]


def by_hand(model: nn.Module, optimizer: Optimizer, precision: str, on_cpu: bool) -> Step:
    """Plain PyTorch."""
    kind = "cpu" if on_cpu else "cuda"

    def step(inputs: Tensor, targets: Tensor) -> None:
        with torch.autocast(kind, dtype=torch.bfloat16) if precision == "bf16" else nullcontext():
            outputs = model(inputs)
        cross_entropy(outputs.float(), targets).backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.step()
        optimizer.zero_grad()

    return step


def accel(model: nn.Module, optimizer: Optimizer, precision: str, on_cpu: bool) -> Step:
    """accel of this tree."""
    from accel import Accelerator
    from accel_state import release

    release()
    return _by_accelerator(Accelerator(cpu=on_cpu, mixed_precision=precision), model, optimizer)


def accelerate(model: nn.Module, optimizer: Optimizer, precision: str, on_cpu: bool) -> Step:
    """Hugging Face Accelerate.

    Raises: Skipped if it is not installed.
    """
    if find_spec("accelerate") is None:
        raise Skipped("accelerate is not installed")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return _by_accelerator(Accelerator(cpu=on_cpu, mixed_precision=precision), model, optimizer)


def _by_accelerator(accelerator: Any, model: nn.Module, optimizer: Optimizer) -> Step:
    ready, stepping = accelerator.prepare(model, optimizer)

    def step(inputs: Tensor, targets: Tensor) -> None:
        accelerator.backward(cross_entropy(ready(inputs), targets))
        stepping.step()
        stepping.zero_grad()

    return step


def fabric(model: nn.Module, optimizer: Optimizer, precision: str, on_cpu: bool) -> Step:
    """Lightning Fabric.

    Raises: Skipped if it is not installed.
    """
    if find_spec("lightning") is None:
        raise Skipped("lightning is not installed")
    from lightning.fabric import Fabric

    chosen: Any = "bf16-mixed" if precision == "bf16" else "32-true"
    runner = Fabric(accelerator="cpu" if on_cpu else "cuda", devices=1, precision=chosen)
    wrapped: Any = runner.setup(model, optimizer)
    ready, stepping = wrapped

    def step(inputs: Tensor, targets: Tensor) -> None:
        runner.backward(cross_entropy(ready(inputs).float(), targets))
        stepping.step()
        stepping.zero_grad()

    return step


CONTESTANTS: dict[str, Contestant] = {"by hand": by_hand, "accel": accel, "Accelerate": accelerate, "Fabric": fabric}
