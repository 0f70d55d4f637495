"""Norms of gradients of which some are on the host, as those of offloaded parameters, and some on the device."""

import pytest
import torch
from accel_parallel.clip import clip_sharded_norm
from suite.recording_device import RecordingDevice
from torch import Tensor, nn


def with_gradient(gradient: Tensor) -> Tensor:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


@pytest.mark.parametrize("kind", [2.0, float("inf")])
def test_gradients_on_the_host_and_on_the_device_have_one_norm(kind: float) -> None:
    numbers = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])]
    plain = [with_gradient(one.clone()) for one in numbers]
    expected = nn.utils.clip_grad_norm_(plain, 1.0, norm_type=kind)
    device = RecordingDevice()
    with device.installed():
        mixed = [with_gradient(device.put(numbers[0])), with_gradient(numbers[1].clone())]
        norm = clip_sharded_norm(mixed, 1.0, kind=kind)
        # before a synchronisation brings what the host has not waited for
        on_host = mixed[1].grad
        assert on_host is not None
        torch.testing.assert_close(on_host, plain[1].grad)
        assert norm.item() == pytest.approx(expected.item())
