"""Optimizers that are not prepared do not step with gradients that are not ready."""

import gc

import pytest
import torch
from accel_amp import AcceleratedOptimizer, LossScaler, UnpreparedGuard
from accel_state import AccumulationState
from torch import nn
from torch.optim import SGD


def pair() -> tuple[nn.Parameter, SGD, SGD]:
    """A guarded parameter, an optimizer of it, and an optimizer of something else."""
    parameter, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    parameter.grad, other.grad = torch.ones(1), torch.ones(1)
    return parameter, SGD([parameter], lr=1.0), SGD([other], lr=1.0)


def test_scaled_gradients_are_stepped_with_by_the_scaler_alone() -> None:
    """A7: it would step 65,536 times too far."""
    parameter, optimizer, elsewhere = pair()
    parameter.grad = None
    scaler = LossScaler("cpu", init_scale=8.0)
    guard = UnpreparedGuard(AccumulationState(), scaler)
    guard.watch([parameter])
    scaler.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    elsewhere.step()
    with pytest.raises(RuntimeError, match=r"this SGD is not prepared, .* multiplied by 8; pass it to accelerator"):
        optimizer.step()
    assert scaler.step(optimizer)
    assert parameter.item() == 0


def test_a_window_is_not_stepped_in() -> None:
    """A7: on several processes each would go its own way, without a word."""
    parameter, optimizer, elsewhere = pair()
    accumulation = AccumulationState(2)
    guard = UnpreparedGuard(accumulation)
    guard.watch([parameter])
    guard.arm()
    accumulation.tick()
    elsewhere.step()
    AcceleratedOptimizer(optimizer, accumulation=accumulation).step()
    with pytest.raises(RuntimeError, match=r"not prepared, and would step at micro-batch 1 of 2, .* shared"):
        optimizer.step()
    assert parameter.item() == 1
    accumulation.tick()
    optimizer.step()
    assert parameter.item() == 0


@pytest.mark.parametrize("released", [True, False])
def test_a_guard_that_is_gone_refuses_nothing(released: bool) -> None:
    parameter, optimizer, _ = pair()
    accumulation = AccumulationState(2)
    guard = UnpreparedGuard(accumulation)
    guard.watch([parameter])
    guard.arm()
    accumulation.tick()
    if released:
        guard.release()
    else:
        del guard
        gc.collect()
    optimizer.step()
    assert parameter.item() == 0
