"""Tensors of a GPU leave it once, through pinned memory that is bounded, after all work on them is done."""

from collections.abc import Iterator

import pytest
import torch
from accel_checkpoint import Snapshot, serialize, tensor_file
from accel_checkpoint.memory import pinned_memory
from saved_files import copied_bytes
from suite.recording_device import RecordingDevice

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def gpu() -> Iterator[RecordingDevice]:
    with RecordingDevice().installed() as installed:
        yield installed


def weights() -> Tensors:
    """Sizes that fill no piece, some pieces and parts of pieces, in three dtypes."""
    return {
        "long": torch.arange(100.0),
        "half": torch.arange(7).bfloat16(),
        "one": torch.tensor(3.0),
        "strided": torch.arange(4.0)[1::4],
        "bool": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
    }


@pytest.mark.parametrize("piece", [1, 64, 1 << 24])
def test_a_file_has_the_same_content_from_a_gpu(
    gpu: RecordingDevice, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """The stand-in's copies arrive with a synchronisation: bytes that are read before it are others."""
    monkeypatch.setattr(tensor_file, "PIECE", piece)
    on_cpu = weights()
    content = b"".join(bytes(part) for part in serialize({name: gpu.put(tensor) for name, tensor in on_cpu.items()}))
    assert content == b"".join(bytes(part) for part in serialize(on_cpu))


def test_a_file_is_staged_once_through_one_bounded_buffer(
    gpu: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "PIECE", 64)
    tensors = {str(number): gpu.put(torch.full((10,), float(number))) for number in range(20)}
    pieces = [len(piece) for piece in serialize(tensors)][1:]
    assert pieces == [64] * 12 + [32]
    assert gpu.pinned == [64]
    assert copied_bytes(gpu) == 800
    assert gpu.calls[0] == "synchronise"
    assert all("pinned" in call and "waits" not in call for call in gpu.calls if call.startswith("copy"))


@pytest.mark.parametrize("steps", [1, 1000])
def test_small_numbers_of_the_cpu_beside_a_gpu_take_the_same_way(gpu: RecordingDevice, steps: int) -> None:
    """AdamW counts its steps on the CPU, for each parameter; each count would cost a buffer and two waits."""
    on_cpu = {f"{number}.{name}": torch.full((4,), 1.0) for number in range(5) for name in ("exp_avg", "exp_avg_sq")}
    counts = {f"{number}.step": torch.full((steps,), float(number)) for number in range(5)}
    on_gpu = {name: gpu.put(tensor) for name, tensor in on_cpu.items()}
    assert b"".join(map(bytes, serialize(on_gpu | counts))) == b"".join(map(bytes, serialize(on_cpu | counts)))
    assert len(gpu.pinned) == (1 if steps == 1 else 5)
    assert copied_bytes(gpu) == 160


def test_what_is_not_contiguous_takes_no_memory_of_the_gpu(gpu: RecordingDevice) -> None:
    """A checkpoint of a GPU that is full has to be possible: the numbers are put in order on the CPU."""
    turned = torch.arange(6.0).view(2, 3).t()
    assert b"".join(map(bytes, serialize({"x": gpu.put(turned)}))) == b"".join(map(bytes, serialize({"x": turned})))
    assert gpu.pinned == []


def test_a_snapshot_is_one_buffer_and_copied_once(gpu: RecordingDevice) -> None:
    snapshot, on_cpu = Snapshot(), weights()
    files = {"a": {name: gpu.put(tensor) for name, tensor in on_cpu.items()}, "b": {"x": gpu.put(torch.ones(3))}}
    for _ in range(2):
        gpu.calls.clear()
        taken = snapshot.take(files)
        assert all(torch.equal(taken["a"][name], tensor) for name, tensor in on_cpu.items())
        assert all(taken["a"][name].dtype == tensor.dtype for name, tensor in on_cpu.items())
        assert taken["b"]["x"].tolist() == [1.0] * 3
        assert (gpu.calls[0], gpu.calls[-1], gpu.calls.count("synchronise")) == ("synchronise", "synchronise", 2)
        assert copied_bytes(gpu) == sum(tensor.nbytes for tensor in on_cpu.values()) + 12
        assert not [call for call in gpu.calls if "waits" in call]
    assert len(gpu.pinned) == 1


def test_a_pinned_buffer_is_bounded(gpu: RecordingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_memory, "BUFFER", 64)
    files = {"a": {str(size): gpu.put(torch.full((size,), float(size))) for size in (4, 8, 5, 40, 1)}}
    taken = Snapshot().take(files)["a"]
    assert gpu.pinned == [48, 20, 164]
    assert all((taken[name] == float(name)).all() for name in files["a"])


def test_a_tensor_of_another_shape_has_memory_of_its_own(gpu: RecordingDevice) -> None:
    snapshot = Snapshot()
    snapshot.take({"a": {"x": gpu.put(torch.ones(3)), "y": gpu.put(torch.ones(3))}})
    taken = snapshot.take({"a": {"x": gpu.put(torch.ones(5)), "y": gpu.put(torch.zeros(3))}})["a"]
    assert (taken["x"].tolist(), taken["y"].tolist()) == ([1.0] * 5, [0.0] * 3)
    assert gpu.pinned == [28, 20]


def test_pinned_buffers_waste_little_of_the_powers_of_two_that_torch_takes(
    gpu: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_memory, "BUFFER", 1 << 10)
    tensors = [torch.empty(count, dtype=torch.uint8) for count in [0, *[300] * 9, 1040, 300, 600, 2060, 1000, 1000]]
    like = pinned_memory.empty_pinned_like(tensors)
    assert [one.shape for one in like] == [one.shape for one in tensors]
    taken = sum(1 << (size - 1).bit_length() for size in gpu.pinned)
    alone = sum(1 << (one.nbytes - 1).bit_length() for one in tensors if one.nbytes)
    assert (len(gpu.pinned), taken, alone) == (5, 9216, 14336)
