"""Where tensors arrive that were sent inside of objects."""

import copyreg
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_comm.transports import serialization
from accel_comm.transports.serialization import pack, unpack
from suite.recording_device import DeviceTensor, RecordingDevice


def test_a_tensor_of_an_accelerator_travels_as_numbers_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way back no index names the accelerator of another process."""
    monkeypatch.setitem(copyreg.dispatch_table, DeviceTensor, serialization._reduced)
    device, asked = RecordingDevice(), list[Any]()

    def put(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        asked.append(args)
        return device.put(tensor)

    with device.installed():
        packed = pack({"x": device.put(torch.arange(6.0))})
        monkeypatch.setattr(torch.Tensor, "to", put)
        arrived = unpack(packed)["x"]
        monkeypatch.undo()
        assert arrived.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert asked == [("cuda",)]
    assert device.calls[0] == "copy out on current stream: 24 bytes, pageable, the host waits"


class Tagged(torch.Tensor):
    """A tensor of a class of its own, which torch reduces to a storage."""


def test_the_storage_of_other_tensors_arrives_on_the_own_accelerator() -> None:
    numbers = torch.arange(3.0)
    memory = SimpleNamespace(device=torch.device("cuda:3"), cpu=numbers.untyped_storage)
    put, (kind, *content) = serialization._reduced_storage(
        SimpleNamespace(_untyped_storage=memory, dtype=numbers.dtype)
    )
    assert kind == "cuda"
    storage = put("cpu", *content)
    assert torch.empty(0).set_(storage._untyped_storage).tolist() == [0, 1, 2]
    assert storage.dtype == torch.float32
    arrived = unpack(pack(numbers.as_subclass(Tagged)))
    assert isinstance(arrived, Tagged)
    assert arrived.tolist() == [0, 1, 2]


def test_torch_asks_for_the_storage_of_a_subclass(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[object] = []

    def note(storage: Any) -> Any:
        reduced.append(storage)
        return storage.__reduce__()

    monkeypatch.setattr(serialization, "_reduced_storage", note)
    pack(torch.arange(3).as_subclass(Tagged))
    assert len(reduced) == 1
