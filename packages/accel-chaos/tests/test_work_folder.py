"""A run works in a copy, without checkpoints; paths of outputs lead into it."""

from pathlib import Path

import pytest
import torch
from accel_chaos import work_folder
from accel_chaos.work_folder import inside, make_work_folder, moved_arguments
from accel_checkpoint import StagedCheckpoint
from accel_checkpoint.manifest import Manifest
from accel_state.errors import CannotRun


def checkpoint(folder: Path) -> None:
    staged = StagedCheckpoint(folder)
    staged.write_tensors("model.safetensors", {"weight": torch.ones(2)})
    staged.seal(Manifest({}, staged.files))
    staged.commit()


def test_files_are_copied_and_checkpoints_are_not(tmp_path: Path) -> None:
    here, work, scratch = tmp_path / "here", tmp_path / "work", tmp_path / "scratch"
    for folder in (here / "runs", here / ".git", here / ".hidden", scratch):
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
    (here / "runs" / "out").symlink_to(scratch)
    (here / "link.txt").symlink_to(scratch / "notes.txt")
    checkpoint(here / "runs" / "checkpoints" / "checkpoint_0")
    checkpoint(scratch / "checkpoint_0")
    make_work_folder(here, work)
    assert not list(work.rglob("checkpoint_0"))
    assert not (work / ".git").exists()
    copies = ["runs/notes.txt", ".hidden/notes.txt", "runs/out/notes.txt", "link.txt"]
    for name in copies:
        assert (work / name).read_text() == "mine"
        (work / name).write_text("changed")
        assert (here / name).read_text() == "mine", name
    assert not [path for path in work.rglob("*") if path.is_symlink()]


def test_what_is_large_is_refused_or_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folder, "COPIED_BYTES", 1 << 20)
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    (here / "data" / "large").write_bytes(bytes(2 << 20))
    checkpoint(here / "runs" / "checkpoint_0")
    (here / "runs" / "checkpoint_0" / "more").write_bytes(bytes(2 << 20))
    with pytest.raises(CannotRun, match=r"to be copied, as of .*/data: say --share"):
        make_work_folder(here, tmp_path / "refused")
    with pytest.raises(CannotRun, match="/dato: no such"):
        make_work_folder(here, tmp_path / "work", ["data", "dato"])
    make_work_folder(here, tmp_path / "work", ["data/large"])
    assert (tmp_path / "work" / "data" / "large").is_symlink()
    assert (tmp_path / "work" / "runs").is_dir()
    assert not (tmp_path / "work" / "runs").is_symlink()


def test_arguments_that_name_outputs_lead_into_the_copy(tmp_path: Path) -> None:
    here, work = tmp_path / "here", tmp_path / "work"
    here.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text").write_text("read me")
    checkpoint(tmp_path / "old" / "checkpoints" / "checkpoint_0")
    words = ["--lr=0.1", f"--output={tmp_path}/new", "../data", str(tmp_path / "old"), "runs"]
    moved = moved_arguments(words, here, work)
    new, old = inside([work], tmp_path / "new"), inside([work], tmp_path / "old")
    assert moved == ["--lr=0.1", f"--output={new}", str(tmp_path / "data"), str(old), "runs"]
