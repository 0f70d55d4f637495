"""A2: steps equal those of a hand-written loop in one process, in every precision, with every way of clipping."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool, assert_same_numbers
from small_steps import Weights, copied
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

# The batch of a job is 4 samples; 24 samples are 6 of them: one window of four and a tail of two.
SAMPLES, JOB_BATCH, EPOCHS = 24, 4, 2
SCALE = 1024.0  # nothing overflows from here
CLIPS = ("none", "norm", "value")
MAX_NORM, MAX_VALUE = 0.1, 0.02
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9),
    "adamw": partial(AdamW, lr=0.01),
    "adagrad": partial(Adagrad, lr=0.05),
}
COMBINATIONS = list(product(OPTIMIZERS, CLIPS))
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
EXACT = {torch.float64: 1e-9, torch.float32: 1e-6}
# A batch of 16 rounds its sums once where four of 4 round each: after 12 steps weights of about one differ by less than
# one unit in the last place of the format (measured: 3.7e-3 of 7.8e-3 in bf16, 3.0e-4 of 9.8e-4 in fp16).
ROUNDING = {name: torch.finfo(dtype).eps for name, dtype in HALF.items()}


def data(dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    targets = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs.to(dtype), targets.to(dtype))


def plain(
    precision: str, dtype: torch.dtype, every: int, optimizer_name: str, clip: str, *, pieces: int, ranks: int
) -> list[Weights]:
    """Hand-written PyTorch in one process; each window is computed in `pieces`, which `ranks` processes would share."""
    model = Mlp(dtype=dtype)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=precision == "fp16")
    inputs, targets = data(dtype).tensors
    size = JOB_BATCH * every
    weights = []
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, size):
            rows = torch.arange(start, min(start + size, SAMPLES))
            count = max(1, len(rows) * pieces // size)
            optimizer.zero_grad()
            for part in rows.chunk(count):
                context: AbstractContextManager[Any] = nullcontext()
                if precision in HALF:
                    context = torch.autocast("cpu", dtype=HALF[precision])
                with context:
                    outputs = model(inputs[part])
                loss = nn.functional.mse_loss(outputs.to(dtype), targets[part])
                scaler.scale(loss / (count // ranks)).backward()  # type: ignore[no-untyped-call] # of torch
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= ranks
            scaler.unscale_(optimizer)
            if clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            elif clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), MAX_VALUE)
            scaler.step(optimizer)
            scaler.update()
        weights.append(copied(model))
    return weights


def prepared(precision: str, dtype: torch.dtype, every: int, optimizer_name: str, clip: str) -> list[Weights]:
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        gradient_accumulation_steps=every,
        kwargs_handlers=[GradScalerKwargs(init_scale=SCALE)],
    )
    model = Mlp(dtype=dtype)
    batch = JOB_BATCH // accelerator.num_processes
    model, optimizer, loader = accelerator.prepare(
        model, OPTIMIZERS[optimizer_name](model.parameters()), DataLoader(data(dtype), batch_size=batch)
    )
    weights = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                if accelerator.sync_gradients and clip == "norm":
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                if accelerator.sync_gradients and clip == "value":
                    accelerator.clip_grad_value_(model.parameters(), MAX_VALUE)
                optimizer.step()
                optimizer.zero_grad()
        weights.append(copied(accelerator.unwrap_model(model)))
    return weights


def all_prepared(precision: str, dtype: torch.dtype, every: int) -> dict[tuple[str, str], list[Weights]]:
    return {(name, clip): prepared(precision, dtype, every, name, clip) for name, clip in COMBINATIONS}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_equal_those_of_the_large_batch(world: MakePool, dtype: torch.dtype, every: int, size: int) -> None:
    """A2: within 1e-9 in float64 and 1e-6 in float32; a short window at the end is the mean of what it has."""
    expected = {(name, clip): plain("no", dtype, every, name, clip, pieces=1, ranks=1) for name, clip in COMBINATIONS}
    for found in world(size).run(all_prepared, "no", dtype, every):
        assert_same_numbers(found, expected, atol=EXACT[dtype])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_steps_in_half_precision_equal_those_of_one_process(
    world: MakePool, precision: str, every: int, size: int
) -> None:
    """A2: within 1e-6 of the same micro-batches one after another, and within rounding of the large batch."""
    dtype, found = torch.float32, world(size).run(all_prepared, precision, torch.float32, every)
    for name, clip in COMBINATIONS:
        in_turn = plain(precision, dtype, every, name, clip, pieces=every * size, ranks=size)
        at_once = plain(precision, dtype, every, name, clip, pieces=1, ranks=1)
        for rank in range(size):
            assert_same_numbers(found[rank][name, clip], in_turn, atol=1e-6)
            assert_same_numbers(found[rank][name, clip], at_once, atol=ROUNDING[precision])


def test_the_combinations_differ() -> None:
    """So that no test above passes because clipping did nothing, or a precision was not entered."""
    results = [
        plain(precision, torch.float32, 4, name, clip, pieces=1, ranks=1)[-1]
        for precision in ("no", "bf16", "fp16")
        for name, clip in COMBINATIONS
    ]
    for one, other in combinations(results, 2):
        assert max(float((one[key] - other[key]).abs().max()) for key in one) > 2e-6
