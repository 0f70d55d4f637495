"""No step of accel makes the host wait for the GPU more often than the same step by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accel import Accelerator, DataLoaderConfiguration
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from gpu_checks.check import Findings, Setup
from gpu_checks.training import batches, perceptron, samples

STEPS, BATCH, EVERY, MAX_NORM = 8, 16, 2, 1.0
#: torch's words for a wait; it says of the mode itself, once, that it does not detect all synchronizing operations
WAIT = "called a synchronizing"
#: what compiles a step; for a rehearsal a C++ compiler has nothing to add
BACKEND, BACKEND_OF_REHEARSAL = "inductor", "aot_eager"
Loop = Callable[[], object]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """What a loop does in each of its optimizer steps."""

    every: int = 1
    clip: bool = False
    precision: str = "no"
    weighted: bool = False
    compiled: bool = False
    #: with a fused optimizer, and a scheduler that has to know whether it has stepped
    fused: bool = False


def run(setup: Setup, findings: Findings) -> None:
    """Counts the waits of two loops for each kind of step: by hand and with accel."""
    steps = {
        "plain": Step(),
        "accumulated": Step(every=EVERY),
        "clipped": Step(clip=True),
        "bf16": Step(precision="bf16"),
        "weighted": Step(weighted=True, every=EVERY),
        "fp16": Step(precision="fp16", clip=True),
        "fp16, fused and scheduled": Step(precision="fp16", fused=True),
        "compiled": Step(compiled=True),
    }
    for kind, step in steps.items():
        with findings.part(kind):
            _compare(setup, findings, kind, by_hand(setup, step), by_accel(setup, step))
    with findings.part("loader"):
        _compare(setup, findings, "loader", loader_by_hand(setup), loader_of_accel(setup))


def _compare(setup: Setup, findings: Findings, kind: str, hand: Loop, ours: Loop) -> None:
    for loop in (hand, ours):
        loop()  # makes states, compiles, and loads kernels
    if setup.rehearsal:
        findings.facts[kind] = "ran; waits are counted with CUDA only"
        return
    waits_of_hand, waits = waits_in(hand), waits_in(ours)
    findings.facts[kind] = f"{len(waits)} waits in {STEPS} micro-batches, by hand {len(waits_of_hand)}"
    assert len(waits) <= len(waits_of_hand), "\n".join([f"by hand {len(waits_of_hand)}, with accel:", *waits])


def waits_in(loop: Loop) -> list[str]:
    """The places at which the host waited for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            loop()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{wait.filename}:{wait.lineno}" for wait in told if WAIT in str(wait.message)]


def by_hand(setup: Setup, step: Step) -> Loop:
    """The loop as PyTorch's documentation writes it."""
    device = torch.device(setup.kind)
    model = perceptron().to(device)
    optimizer, scheduler = _optimizer(model, step)
    data, parameters = batches(device, STEPS, BATCH), list(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=step.precision == "fp16")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(step.precision)
    if step.compiled:
        model.compile(backend=_backend(setup))

    def loop() -> None:
        for number, (inputs, targets) in enumerate(data, start=1):
            with nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype):
                outputs = model(inputs)
            loss = cross_entropy(outputs.float(), targets, reduction="sum" if step.weighted else "mean")
            scaled = scaler.scale(loss / (BATCH * step.every if step.weighted else step.every))
            scaled.backward()  # type: ignore[no-untyped-call] # of torch
            if number % step.every:
                continue
            if step.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()

    return loop


def by_accel(setup: Setup, step: Step) -> Loop:
    """The same loop with accel; what it computes in is settled once in a process, so each precision has its own."""
    from accel_state import release

    release()
    accelerator = Accelerator(
        cpu=setup.rehearsal,
        mixed_precision=step.precision,
        gradient_accumulation_steps=step.every,
        dynamo_backend=_backend(setup) if step.compiled else None,
    )
    bare = perceptron().to(accelerator.device)
    model, optimizer, scheduler = accelerator.prepare(bare, *_optimizer(bare, step))
    data, parameters = batches(accelerator.device, STEPS, BATCH), list(model.parameters())

    def loop() -> None:
        for inputs, targets in data:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(inputs), targets, reduction="sum" if step.weighted else "mean")
                accelerator.backward(loss, weight=BATCH if step.weighted else None)
                if step.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    return loop


def _optimizer(model: nn.Module, step: Step) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=step.fused or None)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.99**number)


def _backend(setup: Setup) -> str:
    return BACKEND_OF_REHEARSAL if setup.rehearsal else BACKEND


def loader_by_hand(setup: Setup) -> Loop:
    """A pass over pinned batches, which are copied without waiting."""
    device = torch.device(setup.kind)
    loader = DataLoader(samples(STEPS * BATCH), BATCH, pin_memory=not setup.rehearsal)

    def loop() -> None:
        for batch in loader:
            for tensor in batch:
                tensor.to(device, non_blocking=True)

    return loop


def loader_of_accel(setup: Setup) -> Loop:
    """The same pass over a prepared loader."""
    from accel_state import release

    release()
    accelerator = Accelerator(cpu=setup.rehearsal, dataloader_config=DataLoaderConfiguration(non_blocking=True))
    loader = accelerator.prepare(DataLoader(samples(STEPS * BATCH), BATCH, pin_memory=not setup.rehearsal))

    def loop() -> None:
        for _ in loader:
            pass

    return loop
