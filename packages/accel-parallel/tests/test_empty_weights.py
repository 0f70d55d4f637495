"""Models are built without memory, or where they are to be."""

from typing import Any, cast

import pytest
import torch
from accel_parallel import init_empty_weights, init_on_device
from accel_parallel.rank_zero_source import send_tensors
from suite.recording_device import DeviceTensor, RecordingDevice
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)

    def mean_is_meta(self) -> bool:
        return self.get_buffer("norm.running_mean").is_meta


def test_an_empty_model_has_shapes_and_no_numbers() -> None:
    """S140: also one that no machine holds; buffers have theirs, unless they are to have none."""
    with init_empty_weights():
        model = Tied()
        huge = nn.Sequential(*(nn.Linear(10_000, 10_000, bias=False) for _ in range(1000)))
    assert sum(parameter.numel() for parameter in huge.parameters()) == 10**11
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.second.weight is model.first.weight
    assert not model.mean_is_meta()
    with init_empty_weights(include_buffers=True):
        assert Tied().mean_is_meta()
    assert not nn.Linear(2, 2).weight.is_meta, "after the block all is as before"


def test_modules_are_made_on_a_device() -> None:
    """S140."""
    with init_on_device("meta"):
        model = Tied()
    assert model.first.weight.is_meta
    assert not model.mean_is_meta()
    with init_on_device("meta", include_buffers=True):
        assert Tied().mean_is_meta()
    with torch.device("meta"), init_on_device("cpu", include_buffers=True):
        assert not Tied().mean_is_meta()
    with pytest.raises(RuntimeError, match="boom"), init_on_device("meta"):
        raise RuntimeError("boom")
    assert not nn.Linear(2, 2).weight.is_meta


def test_parameters_keep_what_libraries_wrote_on_them() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2), requires_grad=False)
            self.weight.kind = "expert"  # type: ignore[attr-defined] # as libraries mark parameters
            self.register_parameter("none", None)

    with init_on_device("meta"):
        model = Frozen()
    assert not model.weight.requires_grad
    assert model.weight.kind == "expert"  # type: ignore[attr-defined]


class Weights(torch.Tensor):
    """Weights that note the numbers whose place they are to have from now on."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # its stub

    def __init__(self, numbers: torch.Tensor) -> None:
        self.taken: list[Any] = []

    data = property(None, lambda self, there: self.taken.append(there))


IN = [f"copy in on current stream: {size} bytes, pinned" for size in (12, 4)]
OUT = ["copy out on current stream: 16 bytes, pageable, the host waits"]


@pytest.mark.parametrize(
    ("rank", "stay", "copies"), [(0, False, IN + OUT), (1, False, OUT), (0, True, IN), (1, True, [])]
)
def test_only_weights_that_are_sent_travel_to_the_device(
    monkeypatch: pytest.MonkeyPatch, rank: int, stay: bool, copies: list[str]
) -> None:
    """The memory of other ranks is written into, or left; what it held before is nobody's.

    The host of the first rank waits for no piece of them.
    """
    monkeypatch.setattr("torch.distributed.get_rank", lambda _: rank)
    monkeypatch.setattr("accel_parallel.rank_zero_source.PIECE", 3)

    def broadcast(there: DeviceTensor, **_: Any) -> None:
        assert rank == 1 or there.numbers.tolist() == [1.0] * 4
        there.numbers.fill_(3.0)

    monkeypatch.setattr("torch.distributed.broadcast", broadcast)
    weights = Weights(torch.ones(4))
    with RecordingDevice().installed() as gpu:
        send_tensors([weights], [cast("Any", object())], torch.device("cuda:0"), stay=stay)
        gpu.finish_copies()
    assert weights.tolist() == [1.0 if stay else 3.0] * 4
    (there,) = weights.taken if stay else [None]
    assert there is None or (there.device.type, there.numbers.tolist()) == ("cuda", [3.0] * 4)
    assert [call for call in gpu.calls if call.startswith("copy")] == copies
    assert len(gpu.pinned) == (2 if rank == 0 else 0)
