"""Ranks with unequal numbers of batches train to their ends."""

import re
from collections.abc import Iterator

import pytest
import torch
from accel import Accelerator, GradientAccumulationPlugin
from accel_testing import MakePool
from suite.toy_models import Mlp, RangeDataset
from torch.optim import SGD
from torch.utils.data import DataLoader, Sampler

SIZES = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 2, 4, 1]


class Varying(Sampler[list[int]]):
    """13 batches whose sizes differ."""

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in SIZES:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(SIZES)


def trained() -> tuple[int, list[int], list[torch.Tensor]]:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare_data_loader(
        DataLoader(RangeDataset(sum(SIZES)), batch_sampler=Varying()), ending="join"
    )
    model = Mlp()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    batches, seen = 0, list[int]()
    with accelerator.join_uneven_inputs([model]):
        for ids in loader:
            optimizer.zero_grad()
            accelerator.backward(model(ids.float().unsqueeze(1).expand(-1, 8) / 42).square().mean())
            optimizer.step()
            batches += 1
            seen += ids.tolist()
    weights = [weight.detach().clone() for weight in accelerator.unwrap_model(model).parameters()]
    return batches, seen, weights


def test_seven_batches_beside_six_train_to_the_end(world: MakePool) -> None:
    """T23: within join_uneven_inputs both ranks end with the same weights, and every batch was trained on once."""
    (seven, zero, weights), (six, one, others) = world(2).run(trained, timeout_s=10)
    assert (seven, six) == (7, 6)
    assert sorted(zero + one) == list(range(sum(SIZES)))
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)
    assert not torch.equal(weights[0], next(Mlp().parameters()))


SAMPLES, BATCH = 21, 3


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(ids.float().unsqueeze(1).expand(-1, 8) / 42).square().mean()
    return loss


def accumulated(every: int, at_epoch_end: str = "flush") -> tuple[list[list[int]], int, list[torch.Tensor]]:
    plugin = GradientAccumulationPlugin(every, at_epoch_end=at_epoch_end)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = Mlp()
    model, optimizer, loader = accelerator.prepare(
        model, SGD(model.parameters(), lr=0.1), DataLoader(RangeDataset(SAMPLES), batch_size=BATCH)
    )
    seen, steps = list[list[int]](), 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for ids in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, ids))
                optimizer.step()
                optimizer.zero_grad()
            seen.append(ids.tolist())
            steps += accelerator.sync_gradients
    return seen, steps, [weight.detach().clone() for weight in accelerator.unwrap_model(model).parameters()]


def by_hand(windows: list[list[list[int]]], world: int) -> list[torch.Tensor]:
    """One process: of each window the micro-batches of all ranks, and how many of them each rank had."""
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    for window in windows:
        length = -(-len(window) // world)
        for batch in window:
            loss = loss_of(model, torch.tensor(batch)) / length / world
            loss.backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.parametrize(("every", "sizes"), [(2, [4, 2, 1]), (3, [6, 1]), (5, [6, 1])])
def test_windows_end_on_all_ranks_when_the_data_of_one_of_them_end(
    every: int, sizes: list[int], world: MakePool
) -> None:
    """T23: seven batches for two ranks, so four and three; a window has as many micro-batches on each of them."""
    (first, steps, weights), (second, fewer, others) = world(2).run(accumulated, every, timeout_s=20)
    assert (len(first), len(second)) == (4, 3)
    assert (steps, fewer) == (len(sizes), len(sizes) - 1)
    batches = [batch for pair in zip(first, [*second, []], strict=True) for batch in pair if batch]
    assert sorted(one for batch in batches for one in batch) == list(range(SAMPLES))
    windows = [[batches.pop(0) for _ in range(size)] for size in sizes]
    for weight, other, plain in zip(weights, others, by_hand(windows, 2), strict=True):
        assert torch.equal(weight, other)
        torch.testing.assert_close(weight, plain)


def test_a_window_that_is_dropped_is_dropped_where_the_data_end(world: MakePool) -> None:
    (_, steps, weights), (_, fewer, others) = world(2).run(accumulated, 2, "drop", timeout_s=20)
    assert (steps, fewer) == (2, 1)
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


def refused(every: int, at_epoch_end: str, late: int) -> str:
    plugin = GradientAccumulationPlugin(every, at_epoch_end=at_epoch_end)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = accelerator.prepare(Mlp())
    try:
        with accelerator.join_uneven_inputs([model]):
            accelerator.gradient_accumulation_steps = late
            accelerator.backward(loss_of(model, torch.ones(3)))
    except ValueError as error:
        return str(error)
    return "not refused"


@pytest.mark.parametrize(
    ("every", "at_epoch_end", "late", "words"),
    [
        (2, "carry", 2, r"at_epoch_end='carry' and gradient_accumulation_steps=2: .* use 'flush' or 'drop'"),
        (2, "flush", 2, r"outside of accumulate\(\), inside join_uneven_inputs with gradient_accumulation_steps=2"),
        (1, "flush", 2, r"gradient_accumulation_steps = 2 inside join_uneven_inputs: set it before"),
    ],
)
def test_windows_on_which_ranks_cannot_agree_are_refused(
    every: int, at_epoch_end: str, late: int, words: str, world: MakePool
) -> None:
    for said in world(2).run(refused, every, at_epoch_end, late, timeout_s=20):
        assert re.search(words, said), said
