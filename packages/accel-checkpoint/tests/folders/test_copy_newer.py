"""A checkpoint that is copied to another folder, as from memory to the disk: whole, under the next number, or not."""

from pathlib import Path

import pytest
import torch
from accel_checkpoint import CheckpointError, Manifest, StagedCheckpoint, is_whole, read_manifest, verify
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.retention import copy_newer, list_checkpoints, newest_whole


def save(folder: Path, number: int, written: str = "2026", steps: int = 0) -> Path:
    stage = StagedCheckpoint(folder / f"checkpoint_{number}")
    stage.write_tensors("model.safetensors", {"weight": torch.full((1000,), float(number))})
    (stage.path / "more").mkdir()
    stage.write("more/text", [str(number).encode()])
    stage.seal(Manifest({"written": written, "steps": steps}, stage.files, {}, [], {}))
    stage.commit()
    return stage.target


def copy_newest(folder: Path) -> Path | None:
    """Copy the newest whole checkpoint in memory to the disk, as launchers do."""
    newest = newest_whole(folder / "memory")
    assert newest is not None
    return copy_newer(newest, folder / "disk")


def test_the_newest_is_copied_with_all_of_its_files(tmp_path: Path) -> None:
    for number in (3, 12):
        save(tmp_path / "memory", number, f"2026-0{number % 10}")
    save(tmp_path / "disk", 7, "2025")
    copied = copy_newest(tmp_path)
    assert copied == tmp_path / "disk" / "checkpoint_8"
    manifest = read_manifest(copied)
    assert verify(copied, manifest).problems == []
    assert (copied / "more" / "text").read_text() == "12"


@pytest.mark.parametrize(("written", "steps", "copied"), [("2026", 4, True), ("2026", 5, False), ("2027", 0, False)])
def test_one_that_is_as_new_on_the_disk_is_enough(written: str, steps: int, copied: bool, tmp_path: Path) -> None:
    save(tmp_path / "memory", 0, "2026", 5)
    save(tmp_path / "disk", 1, written, steps)
    assert (copy_newest(tmp_path) is not None) is copied
    assert len(list_checkpoints(tmp_path / "disk")) == 1 + copied


@pytest.mark.parametrize("newer", [True, False])
def test_a_number_that_another_job_takes_meanwhile_is_not_waited_for(
    newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is taken, unless what the other job has saved is as new."""
    save(tmp_path / "memory", 0, "2026")
    seal = StagedCheckpoint.seal

    def slow(stage: StagedCheckpoint, manifest: Manifest) -> None:
        seal(stage, manifest)
        monkeypatch.setattr(StagedCheckpoint, "seal", seal)
        save(tmp_path / "disk", 0, "2027" if newer else "2025")

    monkeypatch.setattr(StagedCheckpoint, "seal", slow)
    copied = copy_newest(tmp_path)
    assert copied == (None if newer else tmp_path / "disk" / "checkpoint_1")
    written = [read_manifest(path).moment[0] for _, path in list_checkpoints(tmp_path / "disk")]
    assert written == (["2027"] if newer else ["2025", "2026"])
    assert len(list((tmp_path / "disk").iterdir())) == len(written)


def test_one_that_is_not_whole_is_not_copied(tmp_path: Path) -> None:
    save(tmp_path / "memory", 0)
    (save(tmp_path / "memory", 1) / "more" / "text").unlink()
    copied = copy_newest(tmp_path)
    assert copied is not None
    assert (copied / "more" / "text").read_text() == "0"
    assert newest_whole(tmp_path / "none") is None


def test_a_damaged_one_leaves_nothing_behind(tmp_path: Path) -> None:
    file = save(tmp_path / "memory", 0) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        copy_newest(tmp_path)
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "memory", 0)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Filesystem, "write", refuse)
    with pytest.raises(CheckpointError, match="no room: No space left on device"):
        copy_newest(tmp_path)
    assert list((tmp_path / "disk").iterdir()) == []
    assert is_whole(tmp_path / "memory" / "checkpoint_0")
