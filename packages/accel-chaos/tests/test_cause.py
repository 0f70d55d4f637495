"""The first state that differs tells the likely cause."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_chaos.cause import find_cause
from accel_chaos.history import Attempt, History, Step
from accel_chaos.state_digest import TrainingState, digest
from accel_state.devices.cpu import Cpu
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR

FAULT = {"attempt": "000", "step": 4, "time": 4.5, "phase": "forward", "noted": False, "steps_repeated": 0}


def trained(folder: Path, *attempts: tuple[int, str, str]) -> History:
    """Returns a run of attempts, each with its first step, its rates and the counts of its scheduler."""
    history = History(folder)
    for number, (base, rates, counts) in enumerate(attempts):
        steps = [
            Step(str(number), 0, at, 10.0 * number + at, [f"sample {at}"], states(at, rate, count))
            for at, (rate, count) in enumerate(zip(rates, counts, strict=True), base)
        ]
        history.attempts.append(Attempt(str(number), 0, base, True, steps[0].states, steps))
        history.steps[base:] = steps
    history.ended = history.steps[-1].states
    return history


def states(step: int, rate: str, count: str) -> dict[str, str]:
    known = {"weights": str(step), "optimizer state": str(step), "the loss scale": ""}
    return {**known, "learning rates": rate, "the scheduler CosineAnnealingLR (number 1)": count}


@pytest.mark.parametrize(
    ("rates", "counts", "cause"),
    [
        ("dxyz", "0123", "a scheduler was not registered"),  # goes on from the rate that the optimizer has saved
        ("dabc", "0123", "a scheduler was not registered"),  # computes the rate from its count
        ("dghi", "5678", "a scheduler was stepped twice"),
    ],
    ids=["by the last rate", "by the count", "stepped twice"],
)
def test_a_scheduler_that_begins_anew_is_told_from_one_stepped_twice(
    rates: str, counts: str, cause: str, tmp_path: Path
) -> None:
    expected = trained(tmp_path, (0, "abcdefg", "0123456"))
    history = trained(tmp_path, (0, "abcd", "0123"), (3, rates, counts))
    found = find_cause(expected.samples(), expected, history, [FAULT], well=False, exact=True)
    assert found.startswith(cause)
    assert found.endswith("step 4 is the first that differs")


@pytest.mark.parametrize(("step", "found"), [(3, "a save that a signal asks for never came"), (4, "")])
def test_a_save_that_another_fault_has_cut_short_is_not_missed(step: int, found: str, tmp_path: Path) -> None:
    """Another rank may fail in the step after which all were to stop."""
    expected = trained(tmp_path, (0, "abcdefg", "0123456"))
    history = trained(tmp_path, (0, "abcd", "0123"), (2, "cdefg", "23456"))
    faults = [FAULT | {"step": step}, FAULT | {"noted": True, "steps_repeated": 2}]
    words = find_cause(expected.samples(), expected, history, faults, well=True, exact=True)
    assert words.partition(":")[0] == found


def test_the_count_of_each_scheduler_is_a_state() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = CosineAnnealingLR(optimizer, 9)
    found = TrainingState().schedulers
    name = next(name for name, one in found.items() if one is scheduler)
    assert name.startswith("the scheduler CosineAnnealingLR")


def test_schedulers_that_are_chained_are_told_by_those_in_them() -> None:
    """As torch gives a chain no count of its own."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    chain = ChainedScheduler([CosineAnnealingLR(optimizer, 9)])
    state = TrainingState()
    accelerator: Any = SimpleNamespace(run=SimpleNamespace(device=Cpu()), scaler=None)
    state.accelerator = accelerator
    before = state.states()
    optimizer.step()
    chain.step()
    after = state.states()
    (changed,) = [state.schedulers[name] for name in before if before[name] != after[name]]
    assert changed is chain._schedulers[0]


def test_a_tensor_that_is_copied_for_its_digest_lives_until_then() -> None:
    """As a sharded one does, which is gathered."""
    tensor = torch.randn(64, 64).t()
    assert digest(tensor) == digest(tensor.contiguous())
