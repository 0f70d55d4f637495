"""One object in one file."""

from pathlib import Path

import pytest
import torch
from accel_checkpoint import CheckpointError, save_object
from accel_testing import assert_same_numbers
from safetensors.torch import load_file


def test_an_object_is_written_as_torch_does(tmp_path: Path) -> None:
    save_object({"step": 3, "w": torch.ones(2)}, tmp_path / "state.pt")
    assert_same_numbers(torch.load(tmp_path / "state.pt", weights_only=True)["w"], torch.ones(2), atol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_tensors_can_be_safetensors(tmp_path: Path) -> None:
    save_object({"w": torch.ones(2, 3).t()}, tmp_path / "w.safetensors", safe_serialization=True)
    assert_same_numbers(load_file(tmp_path / "w.safetensors")["w"], torch.ones(3, 2), atol=0)


def test_tensors_that_share_memory_are_each_written_whole(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    tensors = {"whole": whole, "again": whole, "part": whole[2:4], "shaped": whole.view(2, 3)}
    save_object(tensors, tmp_path / "w.safetensors", safe_serialization=True)
    assert_same_numbers(load_file(tmp_path / "w.safetensors"), tensors, atol=0)


@pytest.mark.parametrize(
    "tensor", [torch.ones(1, device="meta"), torch.ones(1, dtype=torch.complex128), torch.eye(2).to_sparse()], ids=str
)
def test_what_safetensors_cannot_hold_is_named_with_its_reason(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"safetensors cannot hold w: "):
        save_object({"w": tensor}, tmp_path / "w.safetensors", safe_serialization=True)
    assert list(tmp_path.iterdir()) == []


def test_other_things_cannot(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a mapping of names to tensors, found a list; use safe_serialization"):
        save_object([1], tmp_path / "w.safetensors", safe_serialization=True)
    assert list(tmp_path.iterdir()) == []
