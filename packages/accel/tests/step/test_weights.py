"""T6: gradients over ranks and micro-batches of unequal weight are those of one large batch."""

from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool, RankFailure, assert_same_numbers
from torch import Tensor, nn
from torch.optim import SGD

LENGTHS = (1, 64, 7, 33, 2, 50, 19, 64, 5, 1, 40, 12)  # of the sequences of one window of 12 micro-batches of the job
VOCABULARY = 11


def sequences(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    size = LENGTHS[number % len(LENGTHS)]
    return torch.randn(size, 8, generator=generator, dtype=torch.float64), torch.randint(
        VOCABULARY, (size,), generator=generator
    )


def model_of(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, VOCABULARY)).to(dtype)


def loss_sum(model: nn.Module, number: int, dtype: torch.dtype) -> tuple[Tensor, int]:
    inputs, targets = sequences(number)
    return nn.functional.cross_entropy(model(inputs.to(dtype)), targets, reduction="sum"), len(targets)


def large_batch(windows: int, micro_batches: int, dtype: torch.dtype) -> tuple[list[list[Tensor]], list[float]]:
    """Hand-written PyTorch in one process: all sequences of a window at once."""
    model = model_of(dtype)
    optimizer = SGD(model.parameters(), lr=0.1)
    gradients, losses = [], []
    for window in range(windows):
        parts = [loss_sum(model, window * micro_batches + one, dtype) for one in range(micro_batches)]
        tokens = sum(count for _, count in parts)
        loss = torch.stack([loss for loss, _ in parts]).sum() / tokens
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
        losses.append(loss.item())
        optimizer.step()
    return gradients, losses


def weighted(windows: int, every: int, precision: str, dtype: torch.dtype, as_tensor: bool, zero_first: bool) -> Any:
    scaling = GradScalerKwargs(init_scale=4096.0)  # the usual one overflows once, for a sequence of one token
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=every, kwargs_handlers=[scaling]
    )
    size, rank = accelerator.num_processes, accelerator.process_index
    model = model_of(dtype)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    gradients, losses = [], []
    for step in range(windows * every):
        with accelerator.accumulate(model):
            if zero_first:
                optimizer.zero_grad()
            loss, count = loss_sum(model, step * size + rank, dtype)
            accelerator.backward(loss, weight=torch.tensor(count) if as_tensor else count)
            if accelerator.sync_gradients:
                accelerator.unscale_gradients()
                gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
                losses.append(accelerator.last_loss)
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
    return gradients, losses


@pytest.mark.parametrize("zero_first", [False, True])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("size", [1, 2])
def test_weighted_gradients_are_those_of_the_large_batch(
    world: MakePool, size: int, every: int, zero_first: bool
) -> None:
    """T6, float64: within 1e-12, also where zero_grad comes first."""
    gradients, losses = large_batch(3, every * size, torch.float64)
    for found, logged in world(size).run(weighted, 3, every, "no", torch.float64, bool(every == 4), zero_first):
        assert_same_numbers(found, gradients, atol=1e-12)
        assert logged == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 0.02), ("fp16", 0.003)])
def test_weights_hold_in_every_precision(world: MakePool, precision: str, tolerance: float) -> None:
    """T6, float32 within 1e-6; half precision within its own digits, and no step is lost to an overflow."""
    gradients, losses = large_batch(3, 8, torch.float32)
    for found, logged in world(2).run(weighted, 3, 4, precision, torch.float32, False, False):
        assert_same_numbers(found, gradients, atol=tolerance)
        assert logged == pytest.approx(losses, rel=tolerance)


def refused(case: str) -> str:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2 if case != "alone" else 1)
    first = accelerator.process_index == 0
    model = accelerator.prepare(nn.Linear(2, 1))

    def loss() -> Tensor:
        output: Tensor = model(torch.ones(3, 2)).sum()
        return output

    try:
        if case == "outside":
            accelerator.backward(loss(), weight=3)
        for micro in range(2):
            with accelerator.accumulate(model):
                if case == "negative":
                    accelerator.backward(loss(), weight=-1 - micro)
                elif case == "not a number":
                    accelerator.backward(loss(), weight=float("nan"))
                elif case == "words":
                    accelerator.backward(loss(), weight="three")  # type: ignore[arg-type] # the mistake
                elif case == "several":
                    accelerator.backward(loss(), weight=torch.ones(2))
                elif case == "all zero":
                    accelerator.backward(loss(), weight=0)
                elif case == "some micro-batches":
                    accelerator.backward(loss(), weight=3 if micro else None)
                elif case == "twice":
                    accelerator.backward(loss(), weight=3)
                    accelerator.backward(loss(), weight=3)
                elif case == "some processes":
                    accelerator.backward(loss(), weight=3 if first else None)
                elif case == "later none":
                    accelerator.backward(loss(), weight=3)
        with accelerator.accumulate(model):
            accelerator.backward(loss())
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("negative", "weight=-1.0: expected a number that is zero or more"),
        ("not a number", "weight=nan: expected a number that is zero or more"),
        ("words", "weight='three': expected a number"),
        ("several", "weight has 2 elements"),
        ("all zero", "all weights of this window are zero"),
        ("some micro-batches", "some losses of this window have a weight and others have none"),
        ("twice", "a second loss with a weight at the end of a window"),
        ("outside", "weights of a window of 2 micro-batches are added up within accumulate"),
        ("later none", "losses before this one had weights"),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_weights_that_cannot_be_are_refused(world: MakePool, size: int, case: str, words: str) -> None:
    """A7."""
    for said in world(size).run(refused, case):
        assert words in said


def test_weights_on_some_processes_only_are_refused_on_all(world: MakePool) -> None:
    """A7: in words, and not by a hang."""
    assert [("processes 0 gave a weight" in said) for said in world(2).run(refused, "some processes")] == [True, True]


def test_a_loss_that_nobody_weighed_is_not_told(world: MakePool) -> None:
    with pytest.raises(RankFailure, match="last_loss is known after"):
        world(1, join=False).run(unweighed)


def unweighed() -> float:
    return Accelerator(cpu=True).last_loss
