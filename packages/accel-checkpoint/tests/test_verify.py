"""Files are read once: to find damage, and to have their tensors."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import Manifest, StagedCheckpoint, TensorFile, parallel_copy, serialize, verify
from accel_checkpoint.filesystem import Filesystem, file_sizes
from accel_checkpoint.memory.huge_pages import PAGE, advise_huge_pages
from accel_checkpoint.verify import PIECE, is_whole
from hypothesis import given
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint8)


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor]) -> Manifest:
    (folder / "notes").write_bytes(b"no tensors")
    written = {"state.safetensors": Filesystem().write(folder / "state.safetensors", serialize(tensors))}
    (folder / "notes").unlink()
    return Manifest({}, written | {"notes": Filesystem().write(folder / "notes", [b"no tensors"])})


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


@given(
    st.dictionaries(
        st.text(max_size=3), st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES)), max_size=6
    )
)
def test_tensors_that_are_kept_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, about: dict[str, tuple[list[int], torch.dtype]]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    tensors = {name: random(tuple(shape), dtype) for name, (shape, dtype) in about.items() if name != "__metadata__"}
    result = verify(folder, checkpoint(folder, tensors), keep=["state.safetensors"])
    assert result.problems == []
    (kept,) = result.tensors.values()
    assert kept.keys() == tensors.keys()
    for name, one in tensors.items():
        assert kept[name].dtype == one.dtype
        assert torch.equal(kept[name], one)


@pytest.mark.parametrize("more", [-8, 0, 8])
def test_tensors_longer_than_what_is_read_at_a_time(tmp_path: Path, more: int) -> None:
    tensors = {"long": torch.randint(256, (2 * PIECE + more,)).to(torch.uint8), "short": torch.ones(3)}
    manifest = checkpoint(tmp_path, tensors)
    kept = verify(tmp_path, manifest, keep=["state.safetensors"]).tensors["state.safetensors"]
    assert all(torch.equal(kept[name], one) for name, one in tensors.items())


def test_only_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path, {"x": torch.ones(3)})
    assert verify(tmp_path, manifest).tensors == {}
    assert verify(tmp_path, manifest, ["notes"], keep=["state.safetensors", "notes"]).tensors == {}


def test_what_becomes_of_the_file_does_not_touch_what_was_kept(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path, {"x": torch.ones(3)})
    kept = verify(tmp_path, manifest, keep=["state.safetensors"]).tensors["state.safetensors"]
    with (tmp_path / "state.safetensors").open("r+b") as file:
        file.seek(-12, 2)
        file.write(bytes(12))
    assert kept["x"].tolist() == [1, 1, 1]
    assert TensorFile(tmp_path / "state.safetensors")["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("at", [0, 9, 20, -13, -12, -1])
def test_a_file_that_is_damaged_is_not_kept(tmp_path: Path, at: int) -> None:
    """In its length, its header or its numbers."""
    manifest = checkpoint(tmp_path, {"x": torch.ones(3)})
    content = bytearray((tmp_path / "state.safetensors").read_bytes())
    content[at] ^= 1
    (tmp_path / "state.safetensors").write_bytes(content)
    result = verify(tmp_path, manifest, keep=["state.safetensors"])
    path = tmp_path / "state.safetensors"
    assert result.problems == [f"{path} is damaged: its content is not what was written"]
    assert result.tensors == {}


def test_large_pages_change_nothing_of_a_tensor() -> None:
    for count in (0, 1, PAGE - 1, 3 * PAGE + 5):
        tensor = torch.empty(count, dtype=torch.uint8)
        assert advise_huge_pages(tensor) is tensor
        tensor.fill_(7)
        assert tensor.numel() == 0 or set(tensor.tolist()) == {7}


def test_many_tensors_are_copied_at_once_and_no_gradient_goes_through() -> None:
    own = [torch.nn.Parameter(torch.zeros(3)) for _ in range(50)]
    parallel_copy((one, torch.full((3,), float(number))) for number, one in enumerate(own))
    assert [one.tolist() for one in own] == [[float(number)] * 3 for number in range(50)]
    assert all(one.is_leaf for one in own)
    with pytest.raises(RuntimeError, match="size"):
        parallel_copy([(torch.zeros(2), torch.zeros(3))])


def test_sizes_are_those_of_regular_files_in_all_folders(tmp_path: Path) -> None:
    (tmp_path / "inner" / "most").mkdir(parents=True)
    for name, size in {"a": 3, "inner/b": 0, "inner/most/c": 5}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "linked").symlink_to("a")
    (tmp_path / "folder").symlink_to("inner")
    assert file_sizes(tmp_path) == {"a": 3, "inner/b": 0, "inner/most/c": 5}


def test_a_commit_and_a_look_scan_the_folder_and_ask_for_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4,096 ranks each writes files: two requests to the disk for each, one after the other, were minutes."""
    stage = StagedCheckpoint(tmp_path / "saved")
    for number in range(20):
        stage.write(str(number), [b"x"])
    stage.seal(Manifest(files=stage.files))
    asked, stat = list[str](), os.stat

    def noting(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        asked.append(os.path.basename(os.fspath(path)) if not isinstance(path, int) else "")
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", noting)
    assert stage.commit()
    assert is_whole(tmp_path / "saved")
    assert [name for name in asked if name.isdecimal()] == []
