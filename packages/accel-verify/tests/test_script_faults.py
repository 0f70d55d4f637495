"""Faults of a script that both runs have are told; right scripts of many kinds are not suspected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accel
import pytest
import torch
from accel_state import release
from accel_verify.runner import compare, record
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

Body = Callable[[Any, Optimizer, LambdaLR, int], None]


def warnings_of(body: Body, folder: Path, accumulation: int = 1, dropout: float = 0.5) -> list[str]:
    """What is said of a loop with this body, beside that nothing differs."""

    def script() -> None:
        accelerator = accel.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        torch.manual_seed(3)
        raw = nn.Sequential(nn.Linear(2, 2), nn.Dropout(dropout))
        raw_optimizer = SGD(raw.parameters(), lr=0.1)
        loader: Any = DataLoader(TensorDataset(torch.ones(16, 2)))
        model, optimizer, loader = accelerator.prepare(raw, raw_optimizer, loader)
        schedule = accelerator.prepare(LambdaLR(optimizer, lambda step: 1.0))
        for step, (batch,) in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().sum())
                body(model, optimizer, schedule, step)

    record(script, folder, 0, 4)
    release()
    found = compare(script, folder, 4)
    release()
    assert found.same, found.lines
    return [line for line in found.lines if "warning" in line]


def right(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()


def cleared_by_the_model(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    optimizer.step()
    schedule.step()
    model.zero_grad()


def set_to_zero_by_hand(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    optimizer.step()
    schedule.step()
    for parameter in model.parameters():
        parameter.grad.zero_()


def accumulated_by_hand(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    if step % 2:
        right(model, optimizer, schedule, step)


def evaluated_between(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    right(model, optimizer, schedule, step)
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 2))
    model.train()


def partly_in_eval(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    next(model.children()).eval()
    right(model, optimizer, schedule, step)


@pytest.mark.parametrize(
    "body",
    [right, cleared_by_the_model, set_to_zero_by_hand, accumulated_by_hand, evaluated_between, partly_in_eval],
)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_right_loop_is_not_suspected(body: Body, tmp_path: Path) -> None:
    assert warnings_of(body, tmp_path) == []


def rated_in_each_part_of_an_epoch(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    schedule.step(step // 2)
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore:Detected call of", "ignore:The epoch parameter")
def test_a_schedule_may_be_told_the_epoch_as_often_as_it_is_known(tmp_path: Path) -> None:
    assert warnings_of(rated_in_each_part_of_an_epoch, tmp_path) == []


def test_a_model_without_dropout_is_right_in_eval_mode(tmp_path: Path) -> None:
    assert warnings_of(left_in_eval, tmp_path, dropout=0.0) == []


@pytest.mark.parametrize("body", [right, cleared_by_the_model, set_to_zero_by_hand])
def test_windows_are_not_suspected(body: Body, tmp_path: Path) -> None:
    assert warnings_of(body, tmp_path, accumulation=3) == []


def never_cleared(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    optimizer.step()
    schedule.step()


def scheduled_twice(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    right(model, optimizer, schedule, step)
    schedule.step()


def left_in_eval(model: Any, optimizer: Optimizer, schedule: LambdaLR, step: int) -> None:
    right(model, optimizer, schedule, step)
    if step == 1:
        model.eval()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (never_cleared, "step 2: its gradients have those of the step before in them: call optimizer.zero_grad()"),
        (scheduled_twice, "step 1: LambdaLR.step() was called more than once after it: call it once for each step"),
        (
            left_in_eval,
            "step 3: Sequential, which has dropout or batch norms, is trained in eval mode: call model.train()",
        ),
    ],
)
def test_a_fault_is_told_with_its_first_step(body: Body, said: str, tmp_path: Path) -> None:
    assert warnings_of(body, tmp_path) == [f"accel verify: warning, in both runs: {said}"]
