"""backward, step, accumulation, precision, clipping: against plain PyTorch."""

from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_testing import MakePool, assert_same_numbers
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

Weights = dict[str, torch.Tensor]


def data(samples: int = 16) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randn(samples, 4, generator=generator, dtype=torch.float64))


def plain(batch: int, *, clip: float | None = None, epochs: int = 2) -> Weights:
    """Hand-written PyTorch in one process."""
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for inputs, targets in DataLoader(data(), batch_size=batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # of torch
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model.state_dict()


def accumulated(steps: int, batch: int, zero_first: bool, clip: float | None) -> Weights:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=batch))
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                if zero_first and accelerator.gradient_accumulation_steps == 1:
                    optimizer.zero_grad()
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                if not (zero_first and accelerator.gradient_accumulation_steps == 1):
                    optimizer.zero_grad()
    return accelerator.get_state_dict(model)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_accumulated_steps_equal_those_of_the_large_batch(world: MakePool, size: int, steps: int) -> None:
    """S63, S96, S99: micro-batches of 2 over steps and processes give what plain PyTorch gives with their sum."""
    for weights in world(size).run(accumulated, steps, 2, False, None):
        assert_same_numbers(weights, plain(2 * steps * size), atol=1e-12)


def test_zero_grad_may_come_first_or_last(world: MakePool) -> None:
    """S65."""
    (first,) = world(1).run(accumulated, 1, 4, True, None)
    (last,) = world(1).run(accumulated, 1, 4, False, None)
    assert_same_numbers(first, last, atol=0)


@pytest.mark.parametrize("size", [1, 2])
def test_clipping_by_norm_is_that_of_torch(world: MakePool, size: int) -> None:
    """S73."""
    for weights in world(size).run(accumulated, 2, 2, False, 0.05):
        assert_same_numbers(weights, plain(4 * size, clip=0.05), atol=1e-12)


def window() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(accelerator.process_index)
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    weight = accelerator.unwrap_model(model).state_dict()
    for micro in range(4):
        before = {name: tensor.clone() for name, tensor in weight.items()}
        rate = scheduler.get_last_lr()
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(2, 8, dtype=torch.float64)).square().mean())
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            highest, lowest = accelerator.reduce(gradient, "max"), accelerator.reduce(gradient, "min")
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        moved = any(not torch.equal(before[name], weight[name]) for name in weight)
        due = micro % 2 == 1
        assert moved == due, f"micro-batch {micro}: the weights moved: {moved}"
        assert (scheduler.get_last_lr() != rate) == due
        assert bool(accelerator.sync_gradients) == due
        if accelerator.num_processes > 1:
            assert torch.equal(highest, lowest) == due, f"micro-batch {micro}: gradients"
        assert all((p.grad is None) == due for p in model.parameters())


@pytest.mark.parametrize("size", [1, 2])
def test_within_a_window_nothing_steps_and_nothing_travels(world: MakePool, size: int) -> None:
    """S97, S98: gradients differ between ranks inside a window and agree at its end; nothing else moves."""
    world(size).run(window)


def end_of_loader(batches: int) -> list[bool]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader = accelerator.prepare(DataLoader(data(2 * batches * accelerator.num_processes), batch_size=2))
    model = accelerator.prepare(Mlp(dtype=torch.float64))
    flags = []
    for _ in range(2):
        for _batch in loader:
            with accelerator.accumulate(model):
                flags.append(bool(accelerator.sync_gradients))
    return flags


@pytest.mark.parametrize("size", [1, 2])
def test_the_last_batch_ends_its_window(world: MakePool, size: int) -> None:
    expected = [False, False, False, True, False, True] * 2
    assert world(size).run(end_of_loader, 6) == [expected] * size


def precisions(name: str) -> tuple[Any, ...]:
    accelerator = Accelerator(cpu=True, mixed_precision=name)
    seen: list[torch.dtype] = []
    model = Mlp()
    next(iter(model.children())).register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    output = model(torch.randn(4, 8))
    accelerator.backward(output.square().mean())
    optimizer.step()
    with accelerator.autocast():
        inside = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
    return output.dtype, seen[0], inside, accelerator.mixed_precision, accelerator.scaler is not None


HALF = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", HALF)
def test_the_same_loop_runs_in_every_precision(world: MakePool, name: str, size: int) -> None:
    """S5, S66, S68, S69: half inside the model and under autocast(), float32 outside."""
    for found in world(size).run(precisions, name):
        assert found == (torch.float32, HALF[name], HALF[name], name, name == "fp16")


def overflowing() -> tuple[list[bool], list[float], bool]:
    accelerator = Accelerator(cpu=True, fp16=True)
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    late = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    skipped, rates, kept = [], [], True
    for factor in (1.0, float("nan"), float("nan"), 1.0):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        accelerator.backward(model(torch.ones(2, 8)).mean() * 1e-2 * factor)
        optimizer.step()
        if accelerator.optimizer_step_was_skipped:
            kept &= all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        else:
            late.step()
        optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
        rates.append(float(late.get_last_lr()[0]))
    return skipped, rates, kept


@pytest.mark.parametrize("size", [1, 2])
def test_a_step_that_overflowed_is_skipped_and_said_to_be(world: MakePool, size: int) -> None:
    """S67, S71, S72, S74: nothing is raised, nothing moves, and an unprepared scheduler can wait."""
    for skipped, rates, kept in world(size).run(overflowing):
        assert skipped == [False, True, True, False]
        assert rates == pytest.approx([0.05, 0.05, 0.05, 0.1 / 3])
        assert kept


def clipped_in_fp16() -> tuple[float, float, float]:
    accelerator = Accelerator(cpu=True, fp16=True)
    torch.manual_seed(0)
    model = accelerator.prepare(nn.Linear(8, 4))
    optimizer = accelerator.prepare(SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(2, 8)).sum() / 64)  # times the scale of 65536 it stays below 65504
    norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
    again = accelerator.clip_grad_norm_(model.parameters(), 100.0)
    accelerator.clip_grad_value_(model.parameters(), 0.01)
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    optimizer.step()
    return float(norm), float(again), largest


def test_clipping_sees_unscaled_gradients(world: MakePool) -> None:
    """S73: under fp16 the norm is that of the unscaled gradients, however often it is asked for."""
    for norm, again, largest in world(2).run(clipped_in_fp16):
        # the gradient is 2/64 in each of the 8 x 4 weights and 4 biases
        assert norm == pytest.approx((36 * (2 / 64) ** 2) ** 0.5, rel=1e-3)
        assert again == pytest.approx(0.1, rel=1e-3)
        assert largest == pytest.approx(0.01)


def learning_rates(split: bool, once: bool) -> list[float]:
    accelerator = Accelerator(cpu=True, split_batches=split, scheduler_once_per_step=once)
    model = nn.Linear(8, 4).double()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / 10)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    rates = []
    for _ in range(3):
        accelerator.backward(model(torch.ones(2, 8, dtype=torch.float64)).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        rates.append(round(float(scheduler.get_last_lr()[0]), 6))
    return rates


@pytest.mark.parametrize(
    ("size", "split", "once", "expected"),
    [
        (1, False, False, [0.9, 0.8, 0.7]),
        (2, False, False, [0.8, 0.6, 0.4]),
        (2, True, False, [0.9, 0.8, 0.7]),
        (2, False, True, [0.9, 0.8, 0.7]),
    ],
)
def test_a_prepared_scheduler_counts_as_the_rule_says(
    world: MakePool, size: int, split: bool, once: bool, expected: list[float]
) -> None:
    """S61: N times for each optimizer step; once with split batches, or on request; the rule is said once."""
    running = world(size)
    assert running.run(learning_rates, split, once) == [expected] * size
    said = [running.output(rank).count("learning-rate schedulers") for rank in range(size)]
    assert said == ([1, 0] if size == 2 and not split else [0] * size)


def schedule_after_prepare() -> float:
    accelerator = Accelerator(cpu=True)
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=1.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=2))
    total = 3 * len(loader)
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / total)
    for _ in range(3):
        for inputs, _targets in loader:
            accelerator.backward(model(inputs).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return float(scheduler.get_last_lr()[0])


@pytest.mark.parametrize("size", [1, 2])
def test_a_schedule_made_from_the_prepared_optimizer_ends_on_time(world: MakePool, size: int) -> None:
    """S49, S60: len(loader) after prepare counts the steps; the rate is 0 after all of them on each rank."""
    assert world(size).run(schedule_after_prepare) == [0.0] * size


def accelerators_apart() -> None:
    first = Accelerator(cpu=True, gradient_accumulation_steps=4)
    second = Accelerator()
    assert (first.gradient_accumulation_steps, second.gradient_accumulation_steps) == (4, 1)
    second.gradient_accumulation_steps = 2
    assert first.gradient_accumulation_steps == 4
    assert first.run == second.run
    with pytest.raises(ValueError, match="gradient_accumulation_steps=0"):
        first.gradient_accumulation_steps = 0
    with pytest.raises(ValueError, match=r"already runs with mixed_precision='no' \(now asked: 'bf16'\)"):
        Accelerator(mixed_precision="bf16")


def test_two_accelerators_share_the_run_and_nothing_else(world: MakePool) -> None:
    """S28, S120."""
    world(1).run(accelerators_apart)
