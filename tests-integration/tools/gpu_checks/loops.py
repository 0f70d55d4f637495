"""The same training loop by hand, as PyTorch's documentation writes it, and with accel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accel import Accelerator, GradScalerKwargs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from gpu_checks.check import Setup

MAX_NORM = 1.0
#: of the loss in fp16, so low that nothing overflows
SCALE = 1024.0
#: what compiles a step; for a rehearsal a C++ compiler has nothing to add
BACKEND, BACKEND_OF_REHEARSAL = "inductor", "aot_eager"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Batches = Sequence[tuple[Tensor, Tensor]]
#: goes through its batches, and returns the loss of the last one
Loop = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """What a loop does in each of its optimizer steps."""

    every: int = 1
    clip: bool = False
    precision: str = "no"
    weighted: bool = False
    compiled: bool = False
    fused: bool = False
    #: whether there is a schedule; in fp16 it has to know whether the optimizer has stepped
    scheduled: bool = True


def by_hand(setup: Setup, step: Step, model: nn.Module, data: Batches, *, autocast: bool = True) -> Loop:
    """The loop as PyTorch's documentation writes it.

    Args:
        setup: Where this runs.
        step: What it does.
        model: The model, on its device.
        data: Its micro-batches, on their device.
        autocast: Whether autocast computes in half precision, and not the model itself.
    """
    optimizer, scheduler = optimizer_of(model, step)
    parameters = list(model.parameters())
    scaler = torch.amp.GradScaler(setup.kind, init_scale=SCALE, enabled=step.precision == "fp16")
    dtype = DTYPES.get(step.precision) if autocast else None
    if step.compiled:
        model.compile(backend=backend_of(setup))

    def loop() -> Tensor:
        for number, (inputs, targets) in enumerate(data, start=1):
            with nullcontext() if dtype is None else torch.autocast(setup.kind, dtype=dtype):
                outputs = model(inputs)
            loss = cross_entropy(outputs.float(), targets, reduction="sum" if step.weighted else "mean")
            scaled = scaler.scale(loss / (len(targets) * step.every if step.weighted else step.every))
            scaled.backward()  # type: ignore[no-untyped-call] # of torch
            if number % step.every:
                continue
            if step.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            scaler.step(optimizer)
            scaler.update()
            if step.scheduled:
                scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    return loop


def by_accel(accelerator: Accelerator, step: Step, model: nn.Module, data: Batches) -> Loop:
    """The same loop with accel.

    Args:
        accelerator: What prepares the model, made with the precision and the window of the step.
        step: What the loop does.
        model: The model.
        data: Its micro-batches, on their device.
    """
    prepared: Any = accelerator.prepare(model, *optimizer_of(model, step))
    ready, optimizer, scheduler = prepared
    parameters = list(ready.parameters())

    def loop() -> Tensor:
        for inputs, targets in data:
            with accelerator.accumulate(ready):
                loss = cross_entropy(ready(inputs), targets, reduction="sum" if step.weighted else "mean")
                accelerator.backward(loss, weight=len(targets) if step.weighted else None)
                if step.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                if step.scheduled:
                    scheduler.step()
                optimizer.zero_grad()
        return loss.detach()

    return loop


def accelerator_for(setup: Setup, step: Step, **settings: Any) -> Accelerator:
    """An Accelerator of one process; what it computes in is settled once in a run, so each precision has its own."""
    from accel_state import release

    release()
    return Accelerator(
        cpu=setup.rehearsal,
        mixed_precision=step.precision,
        gradient_accumulation_steps=step.every,
        dynamo_backend=backend_of(setup) if step.compiled else None,
        kwargs_handlers=scaling(),
        **settings,
    )


def scaling() -> list[GradScalerKwargs]:
    """The same scaling of the loss that `by_hand` has."""
    return [GradScalerKwargs(init_scale=SCALE)]


def optimizer_of(model: nn.Module, step: Step) -> tuple[AdamW, LambdaLR]:
    """An optimizer of the model, and a schedule."""
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=step.fused or None)
    return optimizer, LambdaLR(optimizer, lambda number: 0.999**number)


def backend_of(setup: Setup) -> str:
    """The compiler for here."""
    return BACKEND_OF_REHEARSAL if setup.rehearsal else BACKEND
