"""No step of accel makes the host wait for the device where the same step by hand does not.

Each loop runs in a process of its own, as torch keeps an accelerator once it has it. What waits is told by its line.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool
from suite.recording_backend import missing, register
from suite.recording_device import HostWait, RecordingDevice
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

STEPS, BATCH, WIDTH, CLASSES, MAX_NORM, SCALE = 4, 6, 8, 3, 0.1, 256.0
Loop = Callable[[], Iterator[Tensor]]


@dataclass(frozen=True, slots=True)
class Step:
    """What a loop does in each of its optimizer steps."""

    every: int = 1
    clip: bool = False
    precision: str = "no"
    weighted: bool = False
    fused: bool = False
    scheduled: bool = False


KINDS = {
    "plain": Step(scheduled=True),
    "accumulated": Step(every=2, scheduled=True),
    "weighted": Step(weighted=True),
    "weighted and accumulated": Step(weighted=True, every=2),
    "clipped": Step(clip=True),
    "bf16": Step(precision="bf16", clip=True, scheduled=True),
    "fp16": Step(precision="fp16"),
    "fp16, clipped and scheduled": Step(precision="fp16", clip=True, scheduled=True),
    "fp16, weighted and accumulated": Step(precision="fp16", weighted=True, every=2),
    "fp16, accumulated and fused": Step(precision="fp16", clip=True, every=2, fused=True),
    "fp16, fused and scheduled": Step(precision="fp16", fused=True, scheduled=True),
}


def model_on(device: RecordingDevice) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    for layer in model:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(device.put(parameter)))
    return model


def batches_on(device: RecordingDevice, step: Step) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            device.put(torch.randn(BATCH, WIDTH, generator=generator)),
            device.put(torch.randint(CLASSES, (BATCH,), generator=generator)),
        )
        for _ in range(STEPS * step.every)
    ]


def optimizer_of(model: nn.Module, step: Step) -> tuple[AdamW, LambdaLR]:
    # as torch chooses on a GPU, if nobody does
    kind: dict[str, Any] = {"fused": True} if step.fused else {"foreach": True}
    optimizer = AdamW(model.parameters(), lr=0.01, **kind)
    return optimizer, LambdaLR(optimizer, lambda number: 0.9**number)


def by_hand(device: RecordingDevice, step: Step) -> Loop:
    model, data = model_on(device), batches_on(device, step)
    optimizer, scheduler = optimizer_of(model, step)
    scaler = torch.amp.GradScaler(device.device.type, init_scale=SCALE, enabled=step.precision == "fp16")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(step.precision)

    def loop() -> Iterator[Tensor]:
        for number, (inputs, targets) in enumerate(data, start=1):
            with nullcontext() if dtype is None else torch.autocast(device.device.type, dtype=dtype):
                outputs = model(inputs)
            loss = cross_entropy(outputs.float(), targets, reduction="sum" if step.weighted else "mean")
            scaled = scaler.scale(loss / (BATCH * step.every if step.weighted else step.every))
            scaled.backward()  # type: ignore[no-untyped-call] # of torch
            yield loss
            if number % step.every:
                continue
            if step.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
            scaler.update()
            if step.scheduled:
                scheduler.step()
            optimizer.zero_grad()

    return loop


def by_accel(device: RecordingDevice, step: Step) -> Loop:
    accelerator = Accelerator(
        mixed_precision=step.precision,
        gradient_accumulation_steps=step.every,
        kwargs_handlers=[GradScalerKwargs(init_scale=SCALE)],
    )
    assert accelerator.device == device.device
    data, bare = batches_on(device, step), model_on(device)
    model, optimizer, scheduler = accelerator.prepare(bare, *optimizer_of(bare, step))

    def loop() -> Iterator[Tensor]:
        for inputs, targets in data:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(inputs), targets, reduction="sum" if step.weighted else "mean")
                accelerator.backward(loss, weight=BATCH if step.weighted else None)
                yield loss
                if step.clip:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                if step.scheduled:
                    scheduler.step()
                optimizer.zero_grad()

    return loop


def waits_and_losses(make: Callable[[RecordingDevice, Step], Loop], step: Step) -> tuple[list[HostWait], list[float]]:
    device = RecordingDevice(register())
    with device.installed():
        loop = make(device, step)
        device.waits.clear()
        losses = list(loop())
        waits = list(device.waits)
        return waits, [loss.item() for loss in losses]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_only_where_the_step_by_hand_waits(world: MakePool, kind: str) -> None:
    ((waits_by_hand, losses_by_hand),) = world(1, join=False).run(waits_and_losses, by_hand, KINDS[kind])
    ((waits, losses),) = world(1, join=False).run(waits_and_losses, by_accel, KINDS[kind])
    assert losses == pytest.approx(losses_by_hand, rel=1e-3)
    assert losses[-1] != pytest.approx(losses[0])
    allowed = Counter(wait.line for wait in waits_by_hand)
    more = Counter(wait.line for wait in waits) - allowed
    told = sorted({f"{more[wait.line]} x {wait}" for wait in waits if wait.line in more})
    assert not told, "\n".join(
        [f"by hand {len(waits_by_hand)} waits, with accel {len(waits)}; more than by hand:", *told]
    )
