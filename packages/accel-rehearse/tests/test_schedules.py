"""Where schedules of learning rates end."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from accel_rehearse.schedules import length_of
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as torchs


def _linear(step: int, *, num_training_steps: int) -> float:
    return step / num_training_steps  # goes on for ever, but has been told a length


def _to_zero(steps: int) -> Callable[[int], float]:
    return lambda step: max(0.0, 1 - step / steps)


CASES: dict[str, tuple[Callable[[Optimizer], Any], int | None]] = {
    "cosine": (lambda optimizer: torchs.CosineAnnealingLR(optimizer, 77), 77),
    "one cycle": (lambda optimizer: torchs.OneCycleLR(optimizer, 0.1, total_steps=50), 50),
    "steps, after which training goes on": (lambda optimizer: torchs.MultiStepLR(optimizer, [3, 9]), None),
    "a fall": (lambda optimizer: torchs.LinearLR(optimizer, 1.0, 0.0, total_iters=30), 30),
    "a warm-up": (lambda optimizer: torchs.LinearLR(optimizer, 0.1, total_iters=30), None),
    "a low rate at first": (lambda optimizer: torchs.ConstantLR(optimizer, total_iters=30), None),
    "a function that ends": (lambda optimizer: torchs.LambdaLR(optimizer, _to_zero(500)), 500),
    "a function that knows": (
        lambda optimizer: torchs.LambdaLR(optimizer, partial(_linear, num_training_steps=200)),
        200,
    ),
    "a function without end": (lambda optimizer: torchs.LambdaLR(optimizer, lambda step: 0.99**step), None),
    "a function that rises": (lambda optimizer: torchs.LambdaLR(optimizer, lambda step: min(1.0, step / 10)), None),
    "no end": (lambda optimizer: torchs.StepLR(optimizer, 3), None),
    "one after the other": (
        lambda optimizer: torchs.SequentialLR(
            optimizer, [torchs.LinearLR(optimizer), torchs.CosineAnnealingLR(optimizer, 20)], [5]
        ),
        25,
    ),
    "one alone in a sequence": (
        lambda optimizer: torchs.SequentialLR(optimizer, [torchs.CosineAnnealingLR(optimizer, 20)], []),
        20,
    ),
    "at once": (lambda optimizer: torchs.ChainedScheduler([torchs.CosineAnnealingLR(optimizer, 20)]), 20),
}


@pytest.mark.parametrize("name", CASES)
def test_the_end_of_a_schedule_is_found(name: str) -> None:
    make, end = CASES[name]
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert length_of(make(optimizer)) == end
