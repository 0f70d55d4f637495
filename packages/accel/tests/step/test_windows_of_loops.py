"""T24, T40: which batches end a window, whatever else the loop does, and what the gradients of each window are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel import Accelerator, GradientAccumulationPlugin
from accel_testing import MakePool, assert_same_numbers
from small_steps import Weights, copied
from suite.toy_models import Mlp
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket  # torch.distributed has it too, but its type hints do not
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

BATCHES, EVERY, SIZE = 10, 4, 2
STEPS = {"flush": [4, 8, 10, 14, 18, 20], "drop": [4, 8, 14, 18], "carry": [4, 8, 12, 16, 20]}  # counted from one
WINDOWS = {
    "flush": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2,
    "drop": [[0, 1, 2, 3], [4, 5, 6, 7]] * 2,
    "carry": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
}


def data(batches: int, ranks: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    shapes = [(batches * ranks * SIZE, width) for width in (8, 4)]
    return TensorDataset(*(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes))


def plain(windows: list[list[int]], ranks: int, batches: int = BATCHES, seed: int = 0) -> list[Weights]:
    """Hand-written PyTorch in one process: one batch a window, the mean of all its samples."""
    model, weights = Mlp(seed=seed, dtype=torch.float64), []
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = data(batches, ranks).tensors
    for window in windows:
        rows = torch.cat([torch.arange(one * ranks * SIZE, (one + 1) * ranks * SIZE) for one in window])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call] # torch
        optimizer.step()
        weights.append(copied(model))
    return weights


class Counted:
    """Sums gradients up as DDP does, and counts how often."""

    def __init__(self, model: nn.Module) -> None:
        self.exchanges = self.buckets = 0
        if isinstance(model, DistributedDataParallel):
            model.register_comm_hook(self, Counted.exchange)

    @staticmethod
    def exchange(counted: "Counted", bucket: GradBucket) -> Future[Tensor]:
        counted.buckets += 1
        counted.exchanges += bucket.is_last()
        work = torch.distributed.all_reduce(bucket.buffer() / torch.distributed.get_world_size(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return] # of torch


class Evaluation:
    """What a loop does with a second loader after each batch."""

    def __init__(self, how: str, loader: DataLoader[Any], model: nn.Module) -> None:
        self.how = how
        self.loader = loader
        self.model = model
        self.kept: list[Iterator[Any]] = []

    def run(self) -> None:
        if self.how in ("whole", "broken", "two deep"):
            for number, (inputs, _targets) in enumerate(self.loader):
                with torch.no_grad():
                    self.model(inputs)
                if self.how == "two deep":
                    for _ in self.loader:
                        break
                if self.how == "broken" and number == 1:
                    break
        elif self.how == "kept":
            self.kept.append(iter(self.loader))
            next(self.kept[-1])
        elif self.how == "kept to its end":
            self.kept.append(iter(self.loader))
            for _ in range(3):  # its last batch is in hand, and its pass has not ended
                next(self.kept[-1])


EVALUATIONS = ("none", "whole", "broken", "two deep", "kept", "kept to its end")


def loop(end: str, evaluation: str, zero_first: bool) -> tuple[list[int], list[Weights], int]:
    """The batches after which a step was made, the weights after each, and how often gradients travelled."""
    plugin = GradientAccumulationPlugin(num_steps=EVERY, at_epoch_end=end)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    ranks = accelerator.num_processes
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data(BATCHES, ranks), batch_size=SIZE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    other = accelerator.prepare(DataLoader(data(3, ranks), batch_size=SIZE))
    counted, beside = Counted(model), Evaluation(evaluation, other, accelerator.unwrap_model(model))
    steps: list[int] = []
    weights: list[Weights] = []
    number = 0
    for _ in range(2):
        for inputs, targets in loader:
            number += 1
            with accelerator.accumulate(model):
                if zero_first:
                    optimizer.zero_grad()
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
                due = accelerator.sync_gradients
            if due:
                steps.append(number)
                weights.append(copied(accelerator.unwrap_model(model)))
            beside.run()
    return steps, weights, counted.exchanges


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("end", STEPS)
def test_steps_come_where_they_are_due(world: MakePool, end: str, zero_first: bool, size: int) -> None:
    """T24: whatever loops are nested, gradients travel once a step, and what was dropped is not in the next step."""
    expected = plain(WINDOWS[end], size)
    running = world(size)
    for evaluation in EVALUATIONS:
        for steps, weights, exchanges in running.run(loop, end, evaluation, zero_first):
            assert steps == STEPS[end], evaluation
            assert exchanges == (len(STEPS[end]) if size > 1 else 0), evaluation
            assert_same_numbers(weights, expected, atol=1e-12)


def changed(settings: list[tuple[int, int]]) -> tuple[list[int], list[Weights], int]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    ranks = accelerator.num_processes
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(BATCHES, ranks), batch_size=SIZE))
    counted = Counted(model)
    steps: list[int] = []
    weights: list[Weights] = []
    for number, (inputs, targets) in enumerate(loader, start=1):
        accelerator.gradient_accumulation_steps = dict(settings).get(number, accelerator.gradient_accumulation_steps)
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps.append(number)
                weights.append(copied(accelerator.unwrap_model(model)))
    return steps, weights, counted.exchanges


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ([(5, 2)], [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9]]),  # between two windows
        ([(3, 3)], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),  # inside of one
        ([(4, 2)], [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9]]),  # when it has more already
        ([(2, 6)], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]),  # it becomes longer
        ([(3, 1), (5, 4)], [[0, 1, 2], [3], [4, 5, 6, 7], [8, 9]]),
        ([(1, 1), (4, 3)], [[0], [1], [2], [3, 4, 5], [6, 7, 8], [9]]),
    ],
)
def test_the_number_of_steps_may_be_set_at_any_time(
    world: MakePool, settings: list[tuple[int, int]], windows: list[list[int]], size: int
) -> None:
    """T24, S96: each window is the mean of the batches that it had in the end."""
    expected = plain(windows, size)
    for steps, weights, exchanges in world(size).run(changed, settings):
        assert steps == [window[-1] + 1 for window in windows]
        assert_same_numbers(weights, expected, atol=1e-12)
        assert exchanges == (len(windows) if size > 1 else 0)


def without_a_step(leave_out: tuple[int, ...], set_to_none: bool) -> list[Weights]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    ranks = accelerator.num_processes
    model = Mlp(dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(BATCHES, ranks), batch_size=SIZE))
    weights: list[Weights] = []
    for number, (inputs, targets) in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            if accelerator.sync_gradients and number not in leave_out:
                optimizer.step()
                weights.append(copied(accelerator.unwrap_model(model)))
            optimizer.zero_grad(set_to_none=set_to_none)
    return weights


@pytest.mark.parametrize("size", [1, 2])
def test_zero_grad_without_a_step_throws_a_window_away(world: MakePool, size: int) -> None:
    """S97: a loop that finds a loss too large to step with."""
    running = world(size)
    for set_to_none in (True, False):
        for weights in running.run(without_a_step, (4,), set_to_none):
            assert_same_numbers(weights, plain([[4, 5, 6, 7], [8, 9]], size), atol=1e-12)
        for weights in running.run(without_a_step, (8,), set_to_none):
            assert_same_numbers(weights, plain([[0, 1, 2, 3], [8, 9]], size), atol=1e-12)


def two_without_a_step(set_to_none: bool) -> list[list[Weights]]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=EVERY)
    ranks = accelerator.num_processes
    models: list[nn.Module] = [Mlp(seed=seed, dtype=torch.float64) for seed in (0, 1)]
    optimizers: list[Any] = [SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    models = [accelerator.prepare(model) for model in models]
    optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
    loader = accelerator.prepare(DataLoader(data(BATCHES, ranks), batch_size=SIZE))
    weights: list[list[Weights]] = [[], []]
    for number, (inputs, targets) in enumerate(loader, start=1):
        with accelerator.accumulate(*models):
            losses = [nn.functional.mse_loss(model(inputs), targets) for model in models]
            accelerator.backward(torch.stack(losses).sum())
            for model, optimizer, found in zip(models, optimizers, weights, strict=True):
                if accelerator.sync_gradients and number != 4:
                    optimizer.step()
                    found.append(copied(accelerator.unwrap_model(model)))
                optimizer.zero_grad(set_to_none=set_to_none)
    return weights


@pytest.mark.parametrize("size", [1, 2])
def test_zero_grad_without_a_step_drops_the_windows_of_two_optimizers(world: MakePool, size: int) -> None:
    """S97, T40: as with one optimizer."""
    expected = [plain([[4, 5, 6, 7], [8, 9]], size, seed=seed) for seed in (0, 1)]
    running = world(size)
    for set_to_none in (True, False):
        for found in running.run(two_without_a_step, set_to_none):
            assert_same_numbers(found, expected, atol=1e-12)


def two_accelerators(epochs: int, batches: int) -> tuple[list[Weights], list[Weights], tuple[int, int]]:
    """One loop, a model that steps with each batch and another that steps with every third, of one loader each."""
    often = Accelerator(cpu=True)
    seldom = Accelerator(cpu=True, gradient_accumulation_steps=3)
    ranks = often.num_processes
    one, other = Mlp(seed=0, dtype=torch.float64), Mlp(seed=1, dtype=torch.float64)
    one, one_optimizer, one_loader = often.prepare(
        one, SGD(one.parameters(), lr=0.1, momentum=0.9), DataLoader(data(batches, ranks), batch_size=SIZE)
    )
    other, other_optimizer, other_loader = seldom.prepare(
        other, SGD(other.parameters(), lr=0.1, momentum=0.9), DataLoader(data(batches, ranks), batch_size=SIZE)
    )
    beside = often.prepare(DataLoader(data(1, ranks), batch_size=SIZE))
    kept: list[Iterator[Any]] = []
    counts = Counted(one), Counted(other)
    ones: list[Weights] = []
    others: list[Weights] = []
    for _ in range(epochs):
        for (inputs, targets), (same, _) in zip(one_loader, other_loader, strict=True):
            assert torch.equal(inputs, same)
            kept.append(iter(beside))  # of the other Accelerator, and at its end
            next(kept[-1])
            with often.accumulate(one), seldom.accumulate(other):
                often.backward(nn.functional.mse_loss(one(inputs), targets))
                seldom.backward(nn.functional.mse_loss(other(inputs), targets))
                if often.sync_gradients:
                    often.clip_grad_norm_(one.parameters(), 100.0)
                one_optimizer.step()
                other_optimizer.step()
                one_optimizer.zero_grad()
                other_optimizer.zero_grad()
                if often.sync_gradients:
                    ones.append(copied(often.unwrap_model(one)))
                if seldom.sync_gradients:
                    others.append(copied(seldom.unwrap_model(other)))
    return ones, others, (counts[0].exchanges, counts[1].exchanges)


@pytest.mark.parametrize("size", [1, 2])
def test_two_accelerators_accumulate_apart(world: MakePool, size: int) -> None:
    """T40: two models, two optimizers, different windows in one loop."""
    alone = plain([[batch] for batch in range(8)] * 2, size, batches=8)
    in_threes = plain([[0, 1, 2], [3, 4, 5], [6, 7]] * 2, size, batches=8, seed=1)
    for ones, others, exchanges in world(size).run(two_accelerators, 2, 8):
        assert_same_numbers(ones, alone, atol=1e-12)
        assert_same_numbers(others, in_threes, atol=1e-12)
        assert exchanges == ((16, 6) if size > 1 else (0, 0))


class Pair:
    """A generator of four numbers from eight, and a discriminator of them."""

    def __init__(self) -> None:
        self.generator: nn.Module = Mlp(8, 16, 4, seed=0, dtype=torch.float64)
        self.discriminator: nn.Module = Mlp(4, 16, 1, seed=1, dtype=torch.float64)
        self.for_generator: Any = AdamW(self.generator.parameters(), lr=0.01)
        self.for_discriminator: Any = SGD(self.discriminator.parameters(), lr=0.1, momentum=0.9)

    def against(self, noise: Tensor, real: Tensor) -> Tensor:
        judged: Tensor = self.discriminator(torch.cat([real, self.generator(noise).detach()]))
        wanted = torch.cat([torch.ones(len(real), 1), torch.zeros(len(noise), 1)]).to(judged)
        return nn.functional.binary_cross_entropy_with_logits(judged, wanted)

    def with_it(self, noise: Tensor) -> Tensor:
        judged: Tensor = self.discriminator(self.generator(noise))
        return nn.functional.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))


def adversarial_plain(every: int, ranks: int, batches: int) -> tuple[Weights, Weights]:
    """Hand-written: what the generator's loss leaves in the discriminator's gradients is cleared with the window's."""
    pair = Pair()
    inputs, targets = data(batches, ranks).tensors
    size = SIZE * ranks
    for _ in range(2):
        for start in range(0, batches, every):
            window = range(start, min(start + every, batches))
            for micro in window:
                noise, real = inputs[micro * size : (micro + 1) * size], targets[micro * size : (micro + 1) * size]
                if micro == start:
                    pair.for_discriminator.zero_grad()
                (pair.against(noise, real) / len(window)).backward()  # type: ignore[no-untyped-call] # of torch
                if micro == window[-1]:
                    pair.for_discriminator.step()
                if micro == start:
                    pair.for_generator.zero_grad()
                (pair.with_it(noise) / len(window)).backward()  # type: ignore[no-untyped-call] # of torch
                if micro == window[-1]:
                    pair.for_generator.step()
    return copied(pair.generator), copied(pair.discriminator)


def adversarial(every: int, batches: int) -> tuple[Weights, Weights]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every)
    pair = Pair()
    pair.generator, pair.discriminator, pair.for_generator, pair.for_discriminator, loader = accelerator.prepare(
        pair.generator,
        pair.discriminator,
        pair.for_generator,
        pair.for_discriminator,
        DataLoader(data(batches, accelerator.num_processes), batch_size=SIZE),
    )
    for _ in range(2):
        for noise, real in loader:
            with accelerator.accumulate(pair.generator, pair.discriminator):
                pair.for_discriminator.zero_grad()
                accelerator.backward(pair.against(noise, real))
                pair.for_discriminator.step()
                pair.for_generator.zero_grad()
                accelerator.backward(pair.with_it(noise))
                pair.for_generator.step()
    return copied(accelerator.unwrap_model(pair.generator)), copied(accelerator.unwrap_model(pair.discriminator))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("every", [1, 2])
def test_an_adversarial_loop_trains_both_models(world: MakePool, every: int, size: int) -> None:
    """T40: one Accelerator, two models, two losses and two optimizers in each batch, with a short window at the end."""
    for found in world(size).run(adversarial, every, 5):
        assert_same_numbers(found, adversarial_plain(every, size, 5), atol=1e-9)


def exchanges_of_weights(every: int, windows: int) -> tuple[int, int]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every)
    model = Mlp(dtype=torch.float64)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    counted = Counted(model)
    inputs, targets = data(1, 1).tensors
    sizes: list[int] = []
    before = torch.distributed.all_reduce

    def noting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel())
        return before(tensor, *args, **kwargs)

    torch.distributed.all_reduce = noting
    try:
        for _ in range(windows * every):
            with accelerator.accumulate(model):
                accelerator.backward(
                    nn.functional.mse_loss(model(inputs), targets, reduction="sum"), weight=targets.numel()
                )
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.distributed.all_reduce = before
    return counted.exchanges, sum(size == 2 for size in sizes)


@pytest.mark.parametrize("every", [1, 4])
def test_weights_cost_one_small_exchange_a_step(world: MakePool, every: int) -> None:
    """T6, T24: gradients travel once a step, and two numbers once a step."""
    assert world(2).run(exchanges_of_weights, every, 3) == [(3, 3)] * 2
