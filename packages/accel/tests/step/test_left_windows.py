"""Windows that are left or that fail, losses outside of them, and scaled steps that optimizers take in turn."""

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from accel import (
    Accelerator,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    LocalSGD,
)
from accel_testing import MakePool
from small_steps import line
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import DataLoader


def at(value: float) -> torch.Tensor:
    return torch.tensor([[float(value)]])


def ones(count: int) -> DataLoader[torch.Tensor]:
    return DataLoader(torch.ones(count, 1))  # type: ignore[arg-type] # a tensor is indexed like a dataset


def weight_of(model: nn.Module) -> float:
    return next(model.parameters()).item()


def prepared(**settings: Any) -> tuple[Accelerator, nn.Module, Any]:
    accelerator = Accelerator(cpu=True, **settings)
    model: nn.Module = line()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    return accelerator, model, optimizer


def batch(accelerator: Accelerator, model: nn.Module, optimizer: Any, value: float = 1.0, **weight: Any) -> None:
    accelerator.backward(model(at(value)).sum(), **weight)
    optimizer.step()
    optimizer.zero_grad()


def windows_and_then_single_losses(precision: str, weight: dict[str, float], left_at: int) -> list[float]:
    accelerator, model, optimizer = prepared(
        gradient_accumulation_steps=4, mixed_precision=precision, kwargs_handlers=[GradScalerKwargs(init_scale=64.0)]
    )
    for _ in range(left_at):
        with accelerator.accumulate(model):
            batch(accelerator, model, optimizer, **weight)
    found = [weight_of(model)]
    accelerator.gradient_accumulation_steps = 1
    for _ in range(3):
        batch(accelerator, model, optimizer, **weight)
        found.append(weight_of(model))
    return found


@pytest.mark.parametrize("left_at", [4, 2])
@pytest.mark.parametrize("weight", [{}, {"weight": 1.0}])
@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_after_windows_each_loss_has_its_own_step_again(
    world: MakePool, precision: str, weight: dict[str, float], left_at: int
) -> None:
    """T24: also where the last window was left in its middle; its gradients are gone then."""
    for found in world(2).run(windows_and_then_single_losses, precision, weight, left_at):
        assert found[0] == pytest.approx(0.9 if left_at == 4 else 1.0)
        assert [one - other for one, other in pairwise(found)] == pytest.approx([0.1] * 3)


def scaled_pair(scale: float, growth: int = 2000) -> tuple[Accelerator, Any, Any, Any, Any]:
    handlers = [GradScalerKwargs(init_scale=scale, growth_interval=growth)]
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=handlers)
    one, other = line(), line()
    optimizers = SGD(one.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    return accelerator, *accelerator.prepare(one, other, *optimizers)


def asking_for_the_scale_between_two_steps() -> list[float]:
    accelerator, one, other, first, second = scaled_pair(4.0, 1)
    accelerator.backward((one(at(1)) + other(at(1))).sum())
    first.step()
    assert accelerator.scaler is not None
    accelerator.scaler.get_scale()
    second.step()
    return [weight_of(one), weight_of(other)]


def a_loss_between_two_steps() -> list[float]:
    accelerator, one, other, first, second = scaled_pair(4.0, 1)
    accelerator.backward((one(at(1)) + other(at(1))).sum())
    first.step()
    accelerator.backward(other(at(1)).sum())
    second.step()
    return [weight_of(one), weight_of(other)]


def a_whole_step_between_clipping_and_stepping() -> list[float]:
    accelerator, one, other, first, second = scaled_pair(1024.0)
    accelerator.backward((one(at(1)) + other(at(1))).sum())
    accelerator.clip_grad_norm_(other.parameters(), 100)
    first.step()
    first.zero_grad()
    accelerator.backward(one(at(1)).sum())
    second.step()
    return [weight_of(one), weight_of(other)]


def gradients_dropped_in_a_micro_batch() -> list[float]:
    accelerator, one, other, first, second = scaled_pair(4.0, 1)
    with accelerator.accumulate(one, other):
        accelerator.backward((one(at(1)) + other(at(1))).sum())
        accelerator.clip_grad_norm_(one.parameters(), 1e9)
        first.zero_grad()
        accelerator.backward(other(at(1)).sum())
        second.step()
    return [weight_of(one), weight_of(other)]


def several_steps_in_a_micro_batch() -> list[float]:
    accelerator, one, other, first, _ = scaled_pair(4.0, 1)
    with accelerator.accumulate(one):
        for _ in range(3):
            batch(accelerator, one, first)
    return [weight_of(one), weight_of(other)]


def several_steps_of_one_while_another_waits() -> list[float]:
    accelerator, one, other, first, second = scaled_pair(4.0, 1)
    accelerator.backward((one(at(1)) + other(at(1))).sum())
    first.step()
    first.zero_grad()
    for _ in range(2):
        batch(accelerator, one, first)
    second.step()
    return [weight_of(one), weight_of(other)]


TURNS: dict[Callable[[], list[float]], list[float]] = {
    asking_for_the_scale_between_two_steps: [0.9, 0.9],
    a_loss_between_two_steps: [0.9, 0.8],
    a_whole_step_between_clipping_and_stepping: [0.9, 0.9],
    gradients_dropped_in_a_micro_batch: [1.0, 0.8],
    several_steps_in_a_micro_batch: [0.7, 1.0],
}


@pytest.mark.parametrize("turns", TURNS, ids=lambda one: one.__name__)
def test_gradients_are_unscaled_by_the_scale_that_they_have(world: MakePool, turns: Callable[[], list[float]]) -> None:
    """A3: the scale grows with each step here, and waits for gradients that have had none."""
    assert world(1).run(turns) == [pytest.approx(TURNS[turns], rel=1e-5)]


def test_an_optimizer_that_goes_on_alone_keeps_its_steps_right(world: MakePool) -> None:
    ((one, _),) = world(1).run(several_steps_of_one_while_another_waits)
    assert one == pytest.approx(0.7)


def failing_at(position: int) -> list[float]:
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=2)
    for index in range(2):
        try:
            with accelerator.accumulate(model):
                loss = model(at(1 + accelerator.process_index)).sum()
                if index == position:
                    raise RuntimeError("out of memory, say")
                accelerator.backward(loss)
        except RuntimeError:
            pass
        if index == position:
            optimizer.step()  # nothing of the window that failed
            optimizer.zero_grad()
    found = [weight_of(model)]
    for _ in range(2 - (position == 0)):
        with accelerator.accumulate(model):
            batch(accelerator, model, optimizer)
    return [*found, weight_of(model)]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("position", [0, 1])
def test_a_window_that_failed_has_no_step(world: MakePool, processes: int, position: int) -> None:
    """Processes would drift apart, as its gradients have not travelled."""
    found = world(processes).run(failing_at, position)
    # where the first micro-batch fails, the second one begins a window, which the next one ends
    expected = [1.0, 0.9] if position else [1.0, 1 - 0.1 * (sum(range(1, processes + 1)) / processes + 1) / 2]
    assert found == [pytest.approx(expected)] * processes


def test_a_failed_micro_batch_does_not_stop_losses_outside() -> None:
    accelerator, model, optimizer = prepared()
    with pytest.raises(RuntimeError, match="say"), accelerator.accumulate(model):
        raise RuntimeError("out of memory, say")
    for _ in range(2):
        batch(accelerator, model, optimizer)
    assert weight_of(model) == pytest.approx(0.8)


class Decay(LRScheduler):
    """One that has `total_steps` of its own, and goes on after them."""

    def __init__(self, optimizer: Any, total_steps: int) -> None:
        self.total_steps = total_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        return [rate * max(0.0, 1 - self.last_epoch / self.total_steps) for rate in self.base_lrs]


def test_only_a_schedule_that_refuses_to_go_on_is_held_at_its_end() -> None:
    accelerator = Accelerator(cpu=True)
    model = line()
    optimizer = SGD(model.parameters(), lr=1.0)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, Decay(optimizer, 4))
    found = []
    for _ in range(6):
        batch(accelerator, model, optimizer, 0.0)
        schedule.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([0.75, 0.5, 0.25, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("cycled_first", [True, False])
@pytest.mark.parametrize("end", ["drop", "flush"])
def test_a_loader_that_begins_again_and_again_does_not_end_windows(end: str, cycled_first: bool) -> None:
    """T24: only its first end does, when nobody can know that it will begin again."""
    plugin = GradientAccumulationPlugin(num_steps=4, at_epoch_end=end)
    accelerator, model, optimizer = prepared(gradient_accumulation_plugin=plugin)
    whole, short = (accelerator.prepare(ones(count)) for count in (24, 3))

    def forever() -> Iterator[torch.Tensor]:
        while True:
            yield from short

    steps = []
    pairs = zip(forever(), whole, strict=False) if cycled_first else zip(whole, forever(), strict=False)
    for number, (_, _) in enumerate(pairs, start=1):
        with accelerator.accumulate(model):
            batch(accelerator, model, optimizer)
        if accelerator.sync_gradients:
            steps.append(number)
    assert steps == [*([3] if end == "flush" else []), 7, 11, 15, 19, 23, *([24] if end == "flush" else [])]


def test_one_step_each_from_the_middle_of_a_window_on() -> None:
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=4)
    with accelerator.accumulate(model):
        accelerator.gradient_accumulation_steps = 1
        batch(accelerator, model, optimizer)
    with accelerator.accumulate(model):
        accelerator.backward(model(at(1)).sum())
    assert next(model.parameters()).grad == at(1)  # the mean of two


def forgetting_everything() -> str:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: nn.Module = line()
    optimizer = SGD(model.parameters(), lr=0.1)
    model = accelerator.prepare(model)
    with accelerator.accumulate(model):
        torch.autograd.backward(model(at(1)).sum())
        with pytest.raises(RuntimeError, match="not prepared") as refusal:
            optimizer.step()
    return str(refusal.value)


def test_a_script_that_forgot_backward_too_is_refused(world: MakePool) -> None:
    assert all("micro-batch 1 of 2" in said for said in world(2).run(forgetting_everything))


@pytest.mark.parametrize("end", ["a failure", "drop"])
def test_a_window_that_is_over_stands_in_nobodys_way(end: str) -> None:
    plugin = GradientAccumulationPlugin(num_steps=4, at_epoch_end="drop")
    accelerator, model, optimizer = prepared(gradient_accumulation_plugin=plugin)
    if end == "drop":
        for _ in accelerator.prepare(ones(1)):
            with accelerator.accumulate(model):
                batch(accelerator, model, optimizer)
    else:
        with pytest.raises(KeyboardInterrupt), accelerator.accumulate(model):
            raise KeyboardInterrupt
    later = SGD(model.parameters(), lr=0.1)
    later.zero_grad()
    torch.autograd.backward(model(at(1)).sum())
    later.step()
    assert weight_of(model) == pytest.approx(0.9)


def test_the_flag_is_free_again_after_a_window() -> None:
    accelerator, model, optimizer = prepared()
    with accelerator.accumulate(model):
        batch(accelerator, model, optimizer)
    accelerator.sync_gradients = False
    batch(accelerator, model, optimizer)
    assert weight_of(model) == pytest.approx(0.9)


def pickled(options: dict[str, Any]) -> int:
    handlers = [DistributedDataParallelKwargs(**options)]
    model = Accelerator(cpu=True, kwargs_handlers=handlers).prepare(line())
    return len(pickle.dumps(model))


def test_a_model_whose_gradients_are_compressed_can_be_pickled(world: MakePool) -> None:
    for hook in ("fp16", "bf16"):
        assert min(world(2).run(pickled, {"comm_hook": hook})) > 0


def locally_in_fp16() -> tuple[float, float]:
    handlers = [GradScalerKwargs(init_scale=256.0)]
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", scheduler_once_per_step=True, kwargs_handlers=handlers)
    model: nn.Module = line()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    prepared = accelerator.prepare(model, optimizer, StepLR(optimizer, 1, 0.5))
    model, stepping, schedule = prepared
    with LocalSGD(accelerator, model, 2) as local:
        for index in range(4):
            value = 1e4 if accelerator.process_index == 1 and index == 1 else 0.01
            batch(accelerator, model, stepping, value)
            schedule.step()
            local.step()
    for _ in range(3):
        batch(accelerator, model, stepping)
        schedule.step()
    return weight_of(model), stepping.param_groups[0]["lr"]


def test_after_local_steps_momenta_and_schedules_are_equal(world: MakePool) -> None:
    one, other = world(2).run(locally_in_fp16)
    assert one == other


def test_a_loss_that_did_not_go_through_backward_is_said(caplog: pytest.LogCaptureFixture) -> None:
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=2)
    for _ in range(4):
        with accelerator.accumulate(model):
            torch.autograd.backward(model(at(1)).sum())
            optimizer.step()
            optimizer.zero_grad()
    (said,) = [record.message for record in caplog.records]
    assert "was loss.backward() left in?" in said


def test_the_first_argument_is_no_precision() -> None:
    with pytest.raises(ValueError, match=r"device_placement='fp16', the first argument: expected True or False"):
        Accelerator("fp16")  # type: ignore[arg-type] # the mistake
