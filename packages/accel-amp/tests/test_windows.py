"""What optimizers and the scaler of windows do when the accumulation state tells them that a window begins."""

import copy
from typing import Any

import pytest
import torch
from accel_amp import AcceleratedOptimizer, LossScaler, WindowScaler
from accel_amp.window_scaling import _checked
from accel_comm.transports.single import Single
from accel_state import AccumulationState
from suite.recording_device import RecordingDevice
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.ones(1))
    made.grad = torch.ones(1)
    return made


def test_an_optimizer_clears_what_was_dropped_when_the_next_window_begins() -> None:
    weight, accumulation = parameter(), AccumulationState(2)
    optimizer = AcceleratedOptimizer(SGD([weight], lr=1.0), accumulation=accumulation)
    accumulation.tick()
    accumulation.abandon()
    assert weight.grad is not None
    assert optimizer.param_groups
    accumulation.tick()
    assert weight.grad is None


def test_zero_grad_clears_a_dropped_window_at_once() -> None:
    weight, accumulation = parameter(), AccumulationState(2)
    optimizer = AcceleratedOptimizer(SGD([weight], lr=1.0), accumulation=accumulation)
    accumulation.tick()
    optimizer.zero_grad()
    assert weight.grad is not None, "the window has had no step"
    accumulation.abandon()
    optimizer.zero_grad()
    assert weight.grad is None


def test_a_dropped_window_clears_what_no_prepared_optimizer_holds_too() -> None:
    weight, accumulation = parameter(), AccumulationState(2)
    _window = WindowScaler(accumulation, Single(), lambda: [weight])
    accumulation.tick()
    accumulation.tick()
    accumulation.tick()
    assert weight.grad is not None, "its own optimizer clears it"
    accumulation.abandon()
    accumulation.tick()
    assert weight.grad is None


def test_a_copy_of_an_optimizer_is_told_by_the_copy_of_its_window() -> None:
    accumulation = AccumulationState(2)
    optimizer = AcceleratedOptimizer(SGD([parameter()], lr=1.0), accumulation=accumulation)
    twin = copy.deepcopy(optimizer)
    (held,) = twin.param_groups[0]["params"]
    held.grad = torch.ones(1)
    accumulation.tick()
    accumulation.abandon()
    accumulation.tick()
    assert held.grad is not None
    twin.accumulation.tick()
    twin.accumulation.abandon()
    twin.accumulation.tick()
    assert held.grad is None


def test_after_a_dropped_window_gradients_are_unscaled_again() -> None:
    weight, accumulation, scaler = parameter(), AccumulationState(2), LossScaler("cpu", init_scale=8.0)
    optimizer = AcceleratedOptimizer(SGD([weight], lr=1.0), scaler=scaler, accumulation=accumulation)
    _window = WindowScaler(accumulation, Single(), lambda: [weight], scaled=True)
    for _ in range(2):
        accumulation.tick()
        scaler.scale((weight * 2).sum()).backward()  # type: ignore[no-untyped-call] # of torch
    scaler.unscale(optimizer.optimizer)
    accumulation.abandon()
    for _ in range(2):
        accumulation.tick()
        scaler.scale((weight * 2).sum()).backward()  # type: ignore[no-untyped-call] # of torch
    optimizer.step()
    assert weight.item() == 1.0 - 2 * 2.0


class Multiplied(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Notes how many tensors each multiplication in place has had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.tensors: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mul_, torch.ops.aten._foreach_mul_):
            self.tensors.append(len(args[0]) if isinstance(args[0], list | tuple) else 1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5, dtype=torch.float64)])
def test_gradients_of_a_dtype_are_rescaled_in_one_call(factor: torch.Tensor | float) -> None:
    wide, narrow = [parameter() for _ in range(3)], nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    narrow.grad, without = torch.ones(1, dtype=torch.bfloat16), nn.Parameter(torch.ones(1))
    tied = [*wide, narrow, without, wide[0]]
    scaler, multiplied = WindowScaler(AccumulationState(2), Single(), lambda: tied), Multiplied()
    with multiplied:
        scaler._rescale(factor)
    assert sorted(multiplied.tensors) == [1, 3]
    assert [one.grad.item() for one in tied if one.grad is not None] == [0.5] * 5


def test_a_weight_reaches_the_device_without_a_wait() -> None:
    """A copy from the host waits until the device has done what it was asked for: each micro-batch would drain it."""
    with RecordingDevice().installed() as gpu:
        weight = _checked(3, gpu.put(torch.tensor(1.0)))
        assert gpu.calls == []
        assert (weight.device.type, weight.dtype, weight.item()) == ("cuda", torch.float64, 3.0)
