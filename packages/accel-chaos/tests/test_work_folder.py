"""A run works in a copy, without checkpoints; paths of outputs lead into it."""

from pathlib import Path

import torch
from accel_chaos.work_folder import inside, make_work_folder, moved_arguments
from accel_checkpoint import StagedCheckpoint
from accel_checkpoint.manifest import Manifest


def checkpoint(folder: Path) -> None:
    staged = StagedCheckpoint(folder)
    staged.write_tensors("model.safetensors", {"weight": torch.ones(2)})
    staged.seal(Manifest({}, staged.files))
    staged.commit()


def test_files_are_copied_and_checkpoints_are_not(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "runs").mkdir(parents=True)
    (here / "runs" / "notes.txt").write_text("mine")
    (here / ".git").mkdir()
    checkpoint(here / "runs" / "checkpoints" / "checkpoint_0")
    assert make_work_folder(here, tmp_path / "work") == []
    assert (tmp_path / "work" / "runs" / "notes.txt").read_text() == "mine"
    assert not list((tmp_path / "work").rglob("checkpoint_0"))
    assert (tmp_path / "work" / ".git").is_symlink()
    (tmp_path / "work" / "runs" / "notes.txt").write_text("changed")
    assert (here / "runs" / "notes.txt").read_text() == "mine"


def test_arguments_that_name_outputs_lead_into_the_copy(tmp_path: Path) -> None:
    here, work = tmp_path / "here", tmp_path / "work"
    here.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text").write_text("read me")
    checkpoint(tmp_path / "old" / "checkpoints" / "checkpoint_0")
    words = ["--lr=0.1", f"--output={tmp_path}/new", "../data", str(tmp_path / "old"), "runs"]
    moved = moved_arguments(words, here, work)
    new, old = inside(work, tmp_path / "new"), inside(work, tmp_path / "old")
    assert moved == ["--lr=0.1", f"--output={new}", str(tmp_path / "data"), str(old), "runs"]
