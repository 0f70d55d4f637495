"""What is passed on to parts of torch: DistributedDataParallel, the scaler, autocast."""

from typing import Any

import pytest
import torch
from accel import (
    Accelerator,
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
)
from accel_state import CannotRun
from accel_testing import MakePool
from small_steps import batch
from suite.toy_models import Mlp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def container(**options: Any) -> tuple[Any, ...]:
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**options)])
    model: Any = accelerator.prepare(Mlp())
    if not isinstance(model, DistributedDataParallel):
        return ("none",)
    return (
        model.bucket_bytes_cap,
        model.find_unused_parameters,
        model.gradient_as_bucket_view,
        model.static_graph,
        model.broadcast_buffers,
    )


def containers() -> list[tuple[Any, ...]]:
    return [
        container(),
        container(bucket_cap_mb=3),
        container(find_unused_parameters=True),
        container(gradient_as_bucket_view=True),
        container(static_graph=True),
        container(broadcast_buffers=False),
        container(bucket_cap_mb=1, gradient_as_bucket_view=True, static_graph=True),
    ]


def test_the_container_is_built_as_asked(world: MakePool) -> None:
    """S41: each option alone, and several."""
    usual = (25 * 2**20, False, False, False, True)
    expected = [
        usual,
        (3 * 2**20, *usual[1:]),
        (usual[0], True, False, False, True),
        (usual[0], False, True, False, True),
        (usual[0], False, False, True, True),
        (usual[0], False, False, False, False),
        (2**20, False, True, True, True),
    ]
    assert world(2).run(containers) == [expected] * 2
    assert world(1).run(containers) == [[("none",)] * 7], "one process needs no container"


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, inputs: Tensor, left: bool) -> Tensor:
        outputs: Tensor = self.left(inputs) if left else self.right(inputs)
        return outputs


def branches() -> list[bool]:
    options = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    model: Any = accelerator.prepare(Branches())
    used = []
    for step in range(4):
        inputs, _ = batch(step, accelerator.process_index)
        model.zero_grad()
        accelerator.backward(model(inputs, step % 2 == 0).sum())
        weight = accelerator.unwrap_model(model).left.weight
        used.append(weight.grad is not None)
    return used


def test_unused_parameters_are_found(world: MakePool) -> None:
    """S41: a container that was not told so would refuse the second step."""
    assert world(2).run(branches) == [[True, False, True, False]] * 2


def scaler_settings() -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for handlers in (
        None,
        [GradScalerKwargs(init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=7)],
    ):
        scaler = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=handlers).scaler
        assert scaler is not None
        inner = scaler.grad_scaler
        factors = inner.get_growth_factor(), inner.get_backoff_factor(), inner.get_growth_interval()
        found.append((scaler.get_scale(), *factors))
    with pytest.raises(CannotRun, match=r"GradScalerKwargs\(enabled=False\): in fp16 small gradients become zero"):
        Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(enabled=False)])
    return found


def test_the_scaler_is_built_as_asked(world: MakePool) -> None:
    """S72."""
    assert world(1).run(scaler_settings) == [[(65536.0, 2.0, 0.5, 2000), (8.0, 4.0, 0.25, 7)]]


def product_dtype() -> torch.dtype:
    return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def autocast_settings(precision: str) -> tuple[list[torch.dtype], list[torch.dtype]]:
    usual = Accelerator(cpu=True, mixed_precision=precision)
    seen = [product_dtype()]
    with usual.autocast():
        seen.append(product_dtype())
        with usual.autocast(AutocastKwargs(enabled=False)):
            seen.append(product_dtype())
        seen.append(product_dtype())
    switched_off = Accelerator(kwargs_handlers=[AutocastKwargs(enabled=False)])
    with switched_off.autocast():
        seen.append(product_dtype())
    with switched_off.autocast(AutocastKwargs()):
        seen.append(product_dtype())
    keeping = Accelerator(kwargs_handlers=[AutocastKwargs(keep_outputs=True)])
    inputs, _ = batch(0, 0)
    outputs = [one.prepare(Mlp())(inputs).dtype for one in (usual, keeping)]
    return seen, outputs


@pytest.mark.parametrize(("precision", "half"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_is_entered_as_asked(world: MakePool, precision: str, half: torch.dtype) -> None:
    """S66, S68, T38: switched off inside of itself, and outputs kept as they are."""
    full = torch.float32
    ((seen, outputs),) = world(1).run(autocast_settings, precision)
    assert seen == [full, half, full, half, full, half]
    assert outputs == [full, half]


def computed_in(enabled: bool) -> tuple[torch.dtype, bool]:
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16", kwargs_handlers=[AutocastKwargs(enabled=enabled, cache_enabled=False)]
    )
    model = Mlp()
    seen: list[torch.dtype] = []
    cached: list[bool] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append(output.dtype)
        cached.append(torch.is_autocast_cache_enabled())

    model.first.register_forward_hook(note)
    accelerator.prepare(model)(batch(0, 0)[0])
    return seen[0], cached[0]


def test_the_model_is_under_the_autocast_that_was_asked_for(world: MakePool) -> None:
    """S66: a handler says how autocast is entered, in the model as outside of it."""
    running = world(1)
    assert running.run(computed_in, False)[0][0] == torch.float32
    assert running.run(computed_in, True)[0] == (torch.bfloat16, False)


def refused_handlers() -> str:
    handlers: list[Any] = [GradScalerKwargs(), 3, GradScalerKwargs(), AutocastKwargs(), "bf16", AutocastKwargs()]
    with pytest.raises(ValueError, match="kwargs_handlers") as refusal:
        Accelerator(cpu=True, kwargs_handlers=handlers, gradient_accumulation_steps=0, dynamo_backend="nobody")
    return str(refusal.value)


def test_handlers_that_cannot_be_are_refused_together(world: MakePool) -> None:
    """A7: with all that is wrong in one message."""
    (said,) = world(1, join=False).run(refused_handlers)
    for words in (
        "two of GradScalerKwargs: give one",
        "two of AutocastKwargs: give one",
        "has a int: expected some of AutocastKwargs, GradScalerKwargs, DistributedDataParallelKwargs, ProfileKwargs",
        "has a str: expected",
        "gradient_accumulation_steps=0",
        "dynamo_backend='nobody': expected one of no, ",
    ):
        assert words in said
