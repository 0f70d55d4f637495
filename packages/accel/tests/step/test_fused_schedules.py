"""Schedules of fused optimizers in fp16, of which a device knows first whether they have made a step."""

import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool
from suite.recording_backend import missing, register
from suite.recording_device import DeviceTensor, RecordingDevice
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

EVENT = "the host waits for the copies of current stream"
#: what the loss of each step is multiplied by
FACTORS = (1.0, float("inf"), 1.0, 1.0, float("inf"), float("inf"), 1.0)
RATES = (1.0, 0.9, 0.9, 0.8, 0.7, 0.7, 0.7)
AFTER = (0.9, 0.9, 0.8, 0.7, 0.7, 0.7, 0.6)


def by_tenths(number: int) -> float:
    return 1 - number / 10


class Loop:
    """Steps of a fused optimizer in fp16 on a device, some of which overflow, with a scheduler."""

    def __init__(self, device: RecordingDevice) -> None:
        self.device = device
        self.accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
        self.model = nn.Linear(2, 1, bias=False)
        self.model.weight = nn.Parameter(device.put(torch.ones(1, 2)))
        self.inner = AdamW(self.model.parameters(), lr=1.0, betas=(0.9, 0.99), fused=True)
        schedule: Any = LambdaLR(self.inner, by_tenths)
        _, self.optimizer, self.scheduler = self.accelerator.prepare(self.model, self.inner, schedule)
        #: the rate with which each step was begun
        self.rates: list[float] = []
        self.inner.register_step_pre_hook(lambda *_: self.rates.append(self.rate()))

    def rate(self) -> float:
        return round(float(self.inner.param_groups[0]["lr"]), 6)

    def step(self, factor: float) -> None:
        loss = self.model(self.device.put(torch.ones(3, 2))).sum() * factor
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()


def rates_of_steps() -> tuple[list[float], list[str], int]:
    device = RecordingDevice(register())
    with device.installed():
        loop = Loop(device)
        device.waits.clear()
        for factor in FACTORS:
            loop.step(factor)
        return loop.rates, [call for call in device.calls if call == EVENT], len(device.waits)


def test_a_skipped_step_keeps_the_rate_and_waits_for_one_step_at_most(world: MakePool) -> None:
    ((rates, waits_for_a_step, waits),) = world(1, join=False).run(rates_of_steps)
    assert rates == list(RATES)
    assert len(waits_for_a_step) == len(FACTORS) - 1
    assert waits == 0


def said_rate(loop: Loop, how: str) -> float:
    asked: dict[str, Any] = {
        "get_last_lr": lambda: loop.scheduler.get_last_lr()[0],
        "state of the scheduler": lambda: by_tenths(loop.scheduler.state_dict()["last_epoch"]),
        "the scheduler inside": lambda: by_tenths(loop.scheduler.scheduler.last_epoch),
        "groups": lambda: loop.optimizer.param_groups[0]["lr"],
        "state of the optimizer": lambda: loop.optimizer.state_dict()["param_groups"][0]["lr"],
    }
    return round(float(asked[how]()), 6)


def said_rates(how: str) -> tuple[list[float], list[float], int]:
    device = RecordingDevice(register())
    with device.installed():
        loop = Loop(device)
        said = []
        device.waits.clear()
        for factor in FACTORS:
            loop.step(factor)
            said.append(said_rate(loop, how))
        return said, loop.rates, len(device.waits)


@pytest.mark.parametrize(
    "how",
    [
        "get_last_lr",
        "state of the scheduler",
        "the scheduler inside",
        "groups",
        "state of the optimizer",
    ],
)
def test_who_asks_for_the_rate_is_told_that_of_the_next_step(world: MakePool, how: str) -> None:
    ((said, rates, waits),) = world(1, join=False).run(said_rates, how)
    assert said == list(AFTER)
    assert rates == list(RATES)
    assert waits == 0


def copied_rates(of: str) -> list[float]:
    device = RecordingDevice(register())
    with device.installed():
        loop, rates = Loop(device), []
        for factor in FACTORS:
            loop.step(factor)
            # torch's GradScaler is copied between its update and the next step only
            assert loop.accelerator.scaler is not None
            loop.accelerator.scaler.get_scale()
            copied: Any = copy.deepcopy(loop.scheduler if of == "scheduler" else loop.optimizer)
            groups = copied.scheduler.optimizer.param_groups if of == "scheduler" else copied.optimizer.param_groups
            rates.append(round(groups[0]["lr"], 6))
        return rates


@pytest.mark.parametrize("of", ["scheduler", "optimizer"])
def test_a_copy_has_the_rate_of_the_next_step(world: MakePool, of: str) -> None:
    assert world(1, join=False).run(copied_rates, of) == [list(AFTER)]


def saved_rates(folder: str) -> tuple[list[float], list[float], float]:
    device = RecordingDevice(register())
    # a checkpoint takes tensors of torch's own classes only
    with device.installed(), patch("torch.nn.Buffer", DeviceTensor):
        loop = Loop(device)
        for factor in FACTORS[:4]:
            loop.step(factor)
        loop.accelerator.save_state(folder)
        for factor in FACTORS[4:]:
            loop.step(factor)
        loop.step(1.0)
        before = loop.rates[4:]
        loop.accelerator.load_state(folder)
        del loop.rates[:]
        rate = loop.rate()
        for factor in FACTORS[4:]:
            loop.step(factor)
        loop.step(1.0)
        return before, loop.rates, rate


def test_a_checkpoint_has_the_schedule_after_the_newest_step(world: MakePool, tmp_path: Path) -> None:
    ((before, after, rate),) = world(1, join=False).run(saved_rates, str(tmp_path / "state"))
    assert before == after == [*RATES[4:], AFTER[-1]]
    assert rate == AFTER[3]
