"""What makes a host wait for a GPU is noted by the stand-in, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from accel_testing import MakePool
from suite.recording_backend import missing, register
from suite.recording_device import RecordingDevice
from torch import Tensor

WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda numbers: numbers[0].item(),
    "a condition": lambda numbers: bool(numbers.any()),
    "a copy to the host": lambda numbers: numbers.to("cpu"),
    "a copy from the host": lambda numbers: torch.ones(3).to(numbers.device),
    "a number for the device": lambda numbers: torch.tensor(3.0, device=numbers.device),
    "nonzero": lambda numbers: numbers.nonzero(),
    "a mask": lambda numbers: numbers[numbers > 0],
    "masked_select": lambda numbers: numbers.masked_select(numbers > 0),
    "bincount": lambda numbers: torch.bincount(numbers.long()),
    "equal": lambda numbers: torch.equal(numbers, numbers + 1),
    "synchronize": lambda numbers: torch.accelerator.synchronize(),
}
GOING_ON: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda numbers: torch.where(numbers > 0, numbers * 2, 0.0).sum(),
    "an index": lambda numbers: numbers[numbers.long()],
    "a number": lambda numbers: torch.full((), 3.0, device=numbers.device) * numbers,
    "a copy out that nobody waits for": lambda numbers: numbers.to("cpu", non_blocking=True),
    "numbers of the host": lambda numbers: torch.ones(3).sum().item(),
}


def waits_of(name: str) -> int:
    device = RecordingDevice(register())
    with device.installed():
        ({**WAITING, **GOING_ON}[name])(device.put(torch.tensor([0.0, 1.0, 2.0])))
    assert all(wait.caller.startswith(__file__) for wait in device.waits)
    return len(device.waits)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("name", [*WAITING, *GOING_ON])
def test_a_wait_is_noted_with_its_line(world: MakePool, name: str) -> None:
    (waits,) = world(1, join=False).run(waits_of, name)
    assert (waits > 0) == (name in WAITING)
