"""Where folders for checkpoints in memory are, the locks on them, and who has one."""

import os
from pathlib import Path

import pytest
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job.job import read_job
from accel_launch.memory import job_folder
from accel_launch.memory.job_folder import with_memory
from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun


def test_the_place_is_a_tmpfs_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_folder.memory_place(str(tmp_path)) == tmp_path
    monkeypatch.setattr(job_folder, "SHARED_MEMORY", tmp_path)
    assert job_folder.memory_place(None) is None
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    assert job_folder.memory_place(None) == tmp_path
    tmp_path.rmdir()
    assert job_folder.memory_place(None) is None


def test_the_end_of_a_dead_folder_that_fails_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    dead = tmp_path / "accel-memory-1"
    os.close(job_folder._make(dead))
    monkeypatch.setattr(job_folder, "end_folder", fail)
    with pytest.raises(ValueError, match="odd"):
        job_folder.end_dead_folders(tmp_path, pytest.fail)
    os.close(job_folder._lock(dead))


def test_a_disk_without_locks_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Function not implemented"):
        job_folder._make(tmp_path / "accel-memory-1")
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_a_launcher_around_this_one_are_not_passed_on(tmp_path: Path) -> None:
    """Neither its folder, nor what it was told in the environment."""
    (tmp_path / "script.py").touch()
    told = {"ACCEL_MEMORY_CHECKPOINT_EVERY": "5", "ACCEL_MEMORY_CHECKPOINT_DIR": str(tmp_path / "place")}
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    environ = {MEMORY_CHECKPOINTS: "/elsewhere", **told, **ranks}
    with with_memory(read_job(resolve_options([str(tmp_path / "script.py")], environ)), pytest.fail) as (inside, _):
        assert inside.alone
        assert inside.environ == ranks
    own = ["--memory_checkpoint_every", "5", str(tmp_path / "script.py")]
    asked = read_job(resolve_options(own, environ))
    with pytest.raises(CannotRun, match="another launcher has started this one"), with_memory(asked, pytest.fail):
        pass


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    inside = tmp_path / "script.py" / "in"
    asked = read_job(
        resolve_options(["--cpu", "--memory_checkpoint_dir", str(inside), str(tmp_path / "script.py")], {})
    )
    with pytest.raises(CannotRun, match=f"no folder can be made in {inside}: "), with_memory(asked, pytest.fail):
        pass
