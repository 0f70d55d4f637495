"""In which form gradients travel, and when."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import (
    Accelerator,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
)
from accel_testing import MakePool, assert_same_numbers
from small_steps import Weights, batch, copied
from suite.toy_models import Mlp
from torch import Tensor, nn
from torch.optim import SGD


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def apart(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


# In which form gradients travel

FULL = {"matrix_approximation_rank": 15, "start_powerSGD_iter": 2, "min_compression_rate": 0.01}
ONE = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "min_compression_rate": 0.01}


def exchanged(options: dict[str, Any]) -> list[list[Tensor]]:
    """The gradients of four batches; PowerSGD begins with the third."""
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**options)])
    model = accelerator.prepare(Mlp())
    found = []
    for step in range(4):
        inputs, targets = batch(step, accelerator.process_index)
        model.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        found.append(gradients_of(model))
    return found


def exchanged_in_all_forms(forms: dict[str, dict[str, Any]]) -> dict[str, list[list[Tensor]]]:
    return {name: exchanged(options) for name, options in forms.items()}


def together(step: int) -> list[Tensor]:
    """Hand-written: the gradient of the batches of both processes."""
    model = Mlp()
    inputs, targets = (torch.cat(parts) for parts in zip(batch(step, 0), batch(step, 1), strict=True))
    nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # of torch
    return gradients_of(model)


# the largest difference from the uncompressed gradient, which is about one: none, one digit of the format, or the rest
# that a rank of one cannot hold
FORMS: dict[str, tuple[dict[str, Any], float, float]] = {
    "plain": ({}, 0.0, 1e-6),
    "no": ({"comm_hook": "no"}, 0.0, 1e-6),
    "fp16": ({"comm_hook": "fp16"}, 1e-6, 1e-3),
    "fp16 wrapper": ({"comm_wrapper": "fp16"}, 1e-6, 1e-3),
    "bf16": ({"comm_hook": "bf16"}, 1e-5, 1e-2),
    "bf16 wrapper": ({"comm_wrapper": "bf16"}, 1e-5, 1e-2),
    "power": ({"comm_hook": "power_sgd", "comm_state_option": FULL}, 0.0, 1e-4),
    "power of one": ({"comm_hook": "power_sgd", "comm_state_option": ONE}, 1e-2, 1.0),
    # in half precision torch orthogonalises columns that are none of the gradient's into noise: not with FULL
    "power of one in fp16": ({"comm_hook": "power_sgd", "comm_wrapper": "fp16", "comm_state_option": ONE}, 1e-2, 1.0),
}


def test_gradients_travel_in_the_form_that_was_asked_for(world: MakePool) -> None:
    """S42: equal on both processes, and as near to the plain ones as the form allows, but not nearer."""
    one, other = world(2).run(exchanged_in_all_forms, {name: options for name, (options, _, _) in FORMS.items()})
    expected = [together(step) for step in range(4)]
    for name, (options, least, most) in FORMS.items():
        assert_same_numbers(one[name], other[name], atol=0)
        off = max(apart(found, wanted) for found, wanted in zip(one[name], expected, strict=True))
        assert least <= off <= most, name
        if "power_sgd" in str(options) and "comm_wrapper" not in options:
            assert apart(one[name][1], expected[1]) <= 1e-6, "PowerSGD begins where start_powerSGD_iter says"


def batched(broken: bool) -> str:
    def orthogonalize(matrix: Tensor) -> None:
        assert not broken

    with patch("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook._orthogonalize", orthogonalize):
        return prepared_with({"comm_hook": "batched_power_sgd"})


def test_a_form_that_torch_cannot_send_is_refused_before_any_step(world: MakePool) -> None:
    """torch 2.13 fails in the batched PowerSGD when it begins, which is after a thousand steps."""
    running = world(2)
    assert all("torch" in said and "use power_sgd" in said for said in running.run(batched, True))
    assert running.run(batched, False) == ["nothing"] * 2


def prepared_with(options: dict[str, Any]) -> str:
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**options)])
    try:
        accelerator.prepare(Mlp())
    except (TypeError, ValueError) as error:
        return str(error)
    return "nothing"


def refused_forms() -> str:
    options = DistributedDataParallelKwargs(comm_hook="fp8", comm_wrapper="power_sgd", comm_state_option={"rank": 1})
    with pytest.raises(ValueError, match="comm_hook") as refusal:
        Accelerator(cpu=True, kwargs_handlers=[options])
    return str(refusal.value)


def test_forms_that_are_not_known_are_refused_together(world: MakePool) -> None:
    """A7."""
    for said in world(2).run(refused_forms):
        assert "comm_hook='fp8': expected one of no, fp16, bf16, power_sgd, batched_power_sgd" in said
        assert "comm_wrapper='power_sgd': expected fp16 or bf16" in said
        assert "comm_state_option={'rank': 1} is for power_sgd" in said


# When gradients travel


def triggered() -> tuple[list[Tensor], list[Tensor], bool, list[Tensor]]:
    accelerator = Accelerator(cpu=True)
    rank, size = accelerator.process_index, accelerator.num_processes
    reference = Mlp(dtype=torch.float64)
    for step in range(3):
        for other in range(size):
            inputs, targets = batch(step, other, torch.float64)
            # of torch
            (nn.functional.mse_loss(reference(inputs), targets) / size).backward()  # type: ignore[no-untyped-call]
    model = accelerator.prepare(Mlp(dtype=torch.float64))
    losses = []
    with accelerator.no_sync(model):
        for step in range(3):
            inputs, targets = batch(step, rank, torch.float64)
            losses.append(nn.functional.mse_loss(model(inputs), targets))
    for loss in losses[:2]:
        accelerator.backward(loss)
    own = torch.cat([one.flatten() for one in gradients_of(model)])
    at_home = not torch.equal(accelerator.reduce(own, "max"), accelerator.reduce(own, "min"))
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(losses[2])
    found = gradients_of(model)
    # and the next step travels as it always does
    model.zero_grad()
    inputs, targets = batch(0, rank, torch.float64)
    accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
    return found, gradients_of(reference), at_home, gradients_of(model)


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_may_travel_in_a_backward_whose_forward_kept_them(world: MakePool, size: int) -> None:
    """S98: three forwards under no_sync, three backwards, the last one in the context."""
    results = world(size).run(triggered)
    for found, reference, at_home, afterwards in results:
        assert_same_numbers(found, reference, atol=1e-12)
        assert at_home == (size > 1)
        assert_same_numbers(afterwards, results[0][3], atol=0)


def each_batch(every_batch: bool, weighted: bool) -> tuple[list[bool], list[Weights]]:
    plugin = GradientAccumulationPlugin(num_steps=3, sync_each_batch=every_batch)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = Mlp(dtype=torch.float64)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1, momentum=0.9))
    equal, weights = [], []
    for step in range(6):
        inputs, targets = batch(step, accelerator.process_index, torch.float64)
        rows = 1 + accelerator.process_index if weighted else 2
        with accelerator.accumulate(model):
            outputs, wanted = model(inputs[:rows]), targets[:rows]
            if weighted:
                accelerator.backward(nn.functional.mse_loss(outputs, wanted, reduction="sum"), weight=wanted.numel())
            else:
                accelerator.backward(nn.functional.mse_loss(outputs, wanted))
            own = torch.cat([one.flatten() for one in gradients_of(model)])
            equal.append(torch.equal(accelerator.reduce(own, "max"), accelerator.reduce(own, "min")))
            optimizer.step()
            optimizer.zero_grad()
        weights.append(copied(accelerator.unwrap_model(model)))
    return equal, weights


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_may_travel_with_each_batch(world: MakePool, weighted: bool) -> None:
    """S99: the steps are the same, with weights too."""
    running = world(2)
    seldom, often = running.run(each_batch, False, weighted), running.run(each_batch, True, weighted)
    for rank in range(2):
        assert seldom[rank][0] == [False, False, True] * 2
        assert often[rank][0] == [True] * 6
        assert_same_numbers(often[rank][1], seldom[rank][1], atol=1e-12)
