"""Loops that lack a line, or have one too many: refused, or said."""

import logging
from typing import Any

import pytest
import torch
from accel import Accelerator, DistributedDataParallelKwargs, GradientAccumulationPlugin, GradScalerKwargs
from accel_testing import MakePool, assert_same_numbers
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader


def loss_of(model: nn.Module, seed: int = 0) -> torch.Tensor:
    inputs = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
    loss: torch.Tensor = model(inputs).square().mean()
    return loss


def stepping_unprepared(precision: str) -> tuple[str, bool]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    raw = Mlp()
    optimizer = SGD(raw.parameters(), lr=0.1)
    model = accelerator.prepare(raw)
    before = [one.detach().clone() for one in raw.parameters()]
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model, accelerator.process_index))
        with pytest.raises(RuntimeError, match="this SGD is not prepared") as refusal:
            optimizer.step()
    return str(refusal.value), all(torch.equal(one, two) for one, two in zip(raw.parameters(), before, strict=True))


@pytest.mark.parametrize("precision", ["no", "fp16"])
@pytest.mark.parametrize("processes", [1, 2])
def test_an_optimizer_that_was_not_prepared_does_not_step_in_a_window(
    world: MakePool, processes: int, precision: str
) -> None:
    """A7: each process would go its own way, without a word."""
    for said, unchanged in world(processes).run(stepping_unprepared, precision):
        assert "accelerator.prepare" in said
        assert unchanged


def by_hand(prepared: bool) -> list[torch.Tensor]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = Mlp()
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    model = accelerator.prepare(model)
    if prepared:
        optimizer = accelerator.prepare(optimizer)
    for seed in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, seed))
            if accelerator.sync_gradients:
                optimizer.step()
                optimizer.zero_grad()
    return [one.detach() for one in model.parameters()]


def test_an_unprepared_optimizer_may_step_at_the_end_of_a_window() -> None:
    assert_same_numbers(by_hand(prepared=False), by_hand(prepared=True), atol=0)


def numbers(count: int) -> DataLoader[torch.Tensor]:
    # a tensor is indexed like a dataset
    return DataLoader(torch.arange(1.0, 1 + count, dtype=torch.float64)[:, None])  # type: ignore[arg-type]


def side_by_side(short: int, long: int) -> tuple[list[torch.Tensor], int]:
    """A window of 4 over two loaders; the gradient of each step is the mean of its micro-batches."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    optimizer = SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    first, second = (accelerator.prepare(numbers(length * accelerator.num_processes)) for length in (short, long))
    weights, steps = [], 0
    for _ in range(2):
        for one, other in zip(first, second, strict=False):
            with accelerator.accumulate(model):
                accelerator.backward((model(one) + model(other)).sum())
                optimizer.step()
                optimizer.zero_grad()
                steps += accelerator.sync_gradients
        weights.append(next(iter(model.parameters())).detach().clone())
    return weights, steps


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("short", "long"), [(6, 9), (9, 6), (6, 6)])
def test_the_end_of_either_of_two_loaders_ends_the_window(
    world: MakePool, processes: int, short: int, long: int
) -> None:
    """T24: `zip(a, b)`; 6 micro-batches are a window of 4 and one of 2, in each epoch."""
    for weights, steps in world(processes).run(side_by_side, short, long):
        assert steps == 4
        served = [[6 * 0 + processes * row + rank + 1.0 for rank in range(processes)] for row in range(6)]
        means = [2 * sum(row) / processes for row in served]
        step = sum(means[:4]) / 4 + sum(means[4:]) / 2
        for epoch, weight in enumerate(weights, start=1):
            assert weight.item() == pytest.approx(1 - 0.01 * epoch * step, rel=1e-12)


def test_accumulation_that_is_not_entered_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = accelerator.prepare(Mlp())
    with caplog.at_level(logging.WARNING, logger="accel"):
        for _ in range(3):
            accelerator.backward(loss_of(model))
    (said,) = [record.message for record in caplog.records]
    assert "gradient_accumulation_steps=4" in said
    assert "accelerator.accumulate(model)" in said


def test_a_model_is_not_clipped() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    accelerator.backward(loss_of(model))
    for clip in (accelerator.clip_grad_norm_, accelerator.clip_grad_value_):
        with pytest.raises(TypeError, match=r"takes parameters, found the model Mlp; pass model.parameters\(\)"):
            clip(model, 1.0)  # type: ignore[arg-type] # the mistake


def test_a_misspelt_argument_of_backward_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    with pytest.raises(TypeError, match="unexpected keyword argument 'weigth'"):
        accelerator.backward(loss_of(model), weigth=3)
    accelerator.backward(loss_of(model), retain_graph=True)


def unscaled() -> str:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model: nn.Module = Mlp()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    torch.autograd.backward(loss_of(model))
    with pytest.raises(RuntimeError, match="no loss was scaled") as refusal:
        optimizer.step()
    return str(refusal.value)


def test_a_loss_that_was_not_scaled_is_not_stepped_with(world: MakePool) -> None:
    assert all("accelerator.backward(loss), not loss.backward()" in said for said in world(1).run(unscaled))


def test_settings_of_the_wrong_shape_are_refused_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="kwargs_handlers is a GradScalerKwargs: expected a list"):
        Accelerator(cpu=True, kwargs_handlers=GradScalerKwargs())  # type: ignore[arg-type] # the mistake
    with pytest.raises(ValueError, match="at_epoch_end='flsh': expected"):
        GradientAccumulationPlugin(at_epoch_end="flsh")


def triggering() -> str:
    handlers = [DistributedDataParallelKwargs(find_unused_parameters=True)]
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    model = accelerator.prepare(Mlp())
    with accelerator.no_sync(model):
        loss = loss_of(model)
    context = accelerator.trigger_sync_in_backward(model)
    with pytest.raises(ValueError, match="find_unused_parameters=True") as refusal:
        context.__enter__()
    assert loss.item() > 0
    return str(refusal.value)


def test_unused_parameters_are_not_sought_if_the_forward_did_not_look(world: MakePool) -> None:
    assert all("leave the option out" in said for said in world(2).run(triggering))
