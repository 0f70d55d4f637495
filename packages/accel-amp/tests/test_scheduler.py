"""When a scheduler advances, by how much, and that it ends where it should."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, LossScaler
from accel_state import AccumulationState
from suite.toy_passes import ToyPass
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau


def one() -> nn.Parameter:
    parameter = nn.Parameter(torch.tensor([1.0]))
    parameter.grad = torch.ones(1)
    return parameter


def by_tenths(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda n: 1 - n / 10)


def linear(steps: int) -> Callable[[Any], LambdaLR]:
    return lambda optimizer: LambdaLR(optimizer, lambda n: max(0.0, 1 - n / steps))


def prepared(
    make: Callable[[Any], LRScheduler] = by_tenths, *, accumulation: AccumulationState | None = None, **settings: Any
) -> tuple[AcceleratedOptimizer, AcceleratedScheduler]:
    """An optimizer with a learning rate of 1, and a scheduler that was made before it was prepared."""
    accumulation = accumulation or AccumulationState()
    inner = SGD([one()], lr=1.0)
    scheduler = make(inner)
    optimizer = AcceleratedOptimizer(inner, accumulation=accumulation)
    return optimizer, AcceleratedScheduler(scheduler, optimizer, accumulation=accumulation, **settings)


def rate(optimizer: AcceleratedOptimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.9),
        ({"num_processes": 2}, 0.8),
        ({"num_processes": 4}, 0.6),
        ({"num_processes": 2, "split_batches": True}, 0.9),
        ({"num_processes": 2, "step_with_optimizer": False}, 0.9),
    ],
)
def test_one_step_advances_by_the_batches_of_all_processes(settings: dict[str, Any], expected: float) -> None:
    """S61: a schedule that counts the batches of the unsharded loader."""
    optimizer, scheduler = prepared(**settings)
    optimizer.step()
    scheduler.step()
    assert rate(optimizer) == pytest.approx(expected)
    assert scheduler.get_last_lr() == pytest.approx([expected])


@pytest.mark.parametrize(("step_with_optimizer", "expected"), [(True, 1.0), (False, 0.9)])
def test_a_skipped_step_does_not_count_unless_every_call_does(step_with_optimizer: bool, expected: float) -> None:
    """S61, S72"""
    optimizer, scheduler = prepared(step_with_optimizer=step_with_optimizer)
    optimizer.step()
    optimizer.step_was_skipped = True
    scheduler.step()
    assert rate(optimizer) == pytest.approx(expected)


def test_a_step_that_overflowed_leaves_the_rate_alone() -> None:
    """S67, S72: with real float16 gradients."""
    parameter = one()
    inner = SGD([parameter], lr=1.0)
    made = by_tenths(inner)
    optimizer = AcceleratedOptimizer(inner, scaler=LossScaler("cpu", init_scale=8.0))
    scheduler = AcceleratedScheduler(made, optimizer)
    rates = []
    for value in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        optimizer.scaler.scale(value * parameter.sum()).backward()  # type: ignore[union-attr] # it has one
        optimizer.step()
        scheduler.step()
        rates.append(rate(optimizer))
    assert rates == pytest.approx([0.9, 0.9, 0.8])


def test_one_skipped_optimizer_of_several_stops_the_scheduler() -> None:
    first, second = (AcceleratedOptimizer(SGD([one()], lr=1.0)) for _ in range(2))
    scheduler = AcceleratedScheduler(by_tenths(first.optimizer), [first, second])
    first.step()
    second.step_was_skipped = True
    scheduler.step()
    assert rate(first) == 1.0


def test_nothing_advances_while_gradients_accumulate() -> None:
    """S61, S98: the table of §2.5, six micro-batches of which the fourth and the last step."""
    accumulation = AccumulationState(4)
    optimizer, scheduler = prepared(linear(100), accumulation=accumulation, num_processes=2)
    seen = []
    epoch = ToyPass()
    with accumulation.iterating(epoch):
        for number in range(6):
            epoch.last = number == 5
            accumulation.tick()
            optimizer.step()
            scheduler.step()
            seen.append(scheduler.state_dict()["last_epoch"])
    assert seen == [0, 0, 0, 2, 2, 4]


@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_linear_schedule_over_two_processes_ends_at_the_last_step(every: int) -> None:
    """S61: 20 training steps of the unsharded loop are 10 of each process."""
    accumulation = AccumulationState(every)
    optimizer, scheduler = prepared(linear(20), accumulation=accumulation, num_processes=2)
    rates = []
    for _ in range(10 * every):
        accumulation.tick()
        optimizer.step()
        scheduler.step()
        rates.append(rate(optimizer))
    assert rates[-1] == 0
    assert min(rates[:-every]) > 0


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_one_cycle_schedule_stops_at_its_end_without_an_error(processes: int) -> None:
    """§2.5: a scheduler with `total_steps` refuses to go past them."""
    optimizer, scheduler = prepared(
        lambda inner: OneCycleLR(inner, max_lr=1.0, total_steps=10), num_processes=processes
    )
    for _ in range(20):
        optimizer.step()
        scheduler.step()
    assert scheduler.scheduler.last_epoch == 9
    assert rate(optimizer) == pytest.approx(1.0 / 25 / 1e4)


def test_a_one_cycle_schedule_never_leaves_its_curve() -> None:
    """Torch would take one step more than it has rates, to one below zero here."""
    optimizer, scheduler = prepared(
        lambda inner: OneCycleLR(inner, max_lr=1.0, total_steps=10, anneal_strategy="linear"), num_processes=3
    )
    found = []
    for _ in range(6):
        optimizer.step()
        scheduler.step()
        found.append(rate(optimizer))
    assert min(found) > 0
    assert found[3:] == [pytest.approx(1.0 / 25 / 1e4)] * 3


@pytest.mark.parametrize("make", [linear(20), lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=21)])
def test_a_scheduler_made_from_the_prepared_optimizer_reaches_zero(make: Callable[[Any], LRScheduler]) -> None:
    """S60, S62: created after prepare, and not prepared itself."""
    optimizer = AcceleratedOptimizer(SGD([one()], lr=1.0, momentum=0.9))
    scheduler = make(optimizer)
    rates = [rate(optimizer)]
    for _ in range(20):
        optimizer.step()
        scheduler.step()
        rates.append(rate(optimizer))
        optimizer.zero_grad()
    assert rates[-1] == pytest.approx(0, abs=1e-5)
    assert max(rates) > 0.9
    assert scheduler.optimizer is optimizer


def test_an_unprepared_scheduler_may_look_at_the_skipped_step_itself() -> None:
    """S72: `if not optimizer_step_was_skipped: scheduler.step()`."""
    parameter = one()
    optimizer = AcceleratedOptimizer(SGD([parameter], lr=1.0), scaler=LossScaler("cpu", init_scale=8.0))
    scheduler = by_tenths(optimizer)
    rates = []
    for value in (1.0, float("nan"), 1.0):
        optimizer.zero_grad()
        optimizer.scaler.scale(value * parameter.sum()).backward()  # type: ignore[union-attr] # it has one
        optimizer.step()
        if not optimizer.step_was_skipped:
            scheduler.step()
        rates.append(rate(optimizer))
    assert rates == pytest.approx([0.9, 0.9, 0.8])


def test_a_scheduler_that_follows_a_metric_is_given_it() -> None:
    optimizer, scheduler = prepared(lambda inner: ReduceLROnPlateau(inner, patience=0, factor=0.5))
    for loss in (1.0, 2.0):
        optimizer.step()
        scheduler.step(loss)
    assert rate(optimizer) == 0.5


def test_the_state_of_the_inner_scheduler_is_saved_and_loaded() -> None:
    optimizer, scheduler = prepared()
    optimizer.step()
    scheduler.step()
    _, other = prepared()
    other.load_state_dict(scheduler.state_dict())
    assert other.scheduler.last_epoch == 1
    with pytest.warns(UserWarning, match="get_last_lr"):  # torch's own advice
        assert other.get_lr() == scheduler.scheduler.get_lr()
    assert other.get_last_lr() == pytest.approx([0.9])
