"""Where folders for checkpoints in memory are, the locks on them, and who has one."""

import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from accel_launch.cli.launch_command import resolve_options
from accel_launch.job.job import Job, read_job
from accel_launch.memory import job_folder
from accel_launch.memory.job_folder import run_with_memory
from accel_launch.report.job_result import JobResult
from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun


def job(tmp_path: Path, *flags: str, environ: dict[str, str] | None = None) -> Job:
    (tmp_path / "script.py").touch()
    return read_job(resolve_options(["--cpu", *flags, str(tmp_path / "script.py")], environ or {}))


def has_none(job: Job) -> JobResult:
    assert MEMORY_CHECKPOINTS not in job.environ
    return JobResult(1)


def refused(asked: Job, words: str) -> None:
    with pytest.raises(CannotRun, match=re.escape(words)):
        run_with_memory(asked, lambda mine: JobResult(1), pytest.fail)


def test_checkpoints_without_a_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "memory_place", lambda named: None)
    refused(job(tmp_path, "--memory_checkpoint_every", "5"), "no tmpfs is at /dev/shm: name a folder of a local disk")
    run_with_memory(job(tmp_path), has_none, pytest.fail)


def test_another_launcher_around_this_one_is_refused(tmp_path: Path) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    inside = job(tmp_path, "--memory_checkpoint_every", "5", environ=environ)
    refused(inside, "another launcher (RANK=1, WORLD_SIZE=2) has started this one: leave the option out")


def test_a_launch_that_asks_for_nothing_never_ends_by_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("odd")

    said = list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(job_folder, "end_dead_folders", fails)
        run_with_memory(job(tmp_path), has_none, pytest.fail)
    monkeypatch.setattr(job_folder, "end_folder", fails)
    named = job(tmp_path, "--memory_checkpoint_dir", str(tmp_path / "place"))
    assert run_with_memory(named, lambda mine: JobResult(3), said.append) == JobResult(3)
    assert [words.rpartition(": ")[2] for words in said] == ["odd"]


def test_the_place_is_a_tmpfs_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_folder.memory_place(str(tmp_path)) == tmp_path
    monkeypatch.setattr(job_folder, "SHARED_MEMORY", tmp_path)
    assert job_folder.memory_place(None) is None
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    assert job_folder.memory_place(None) == tmp_path


def test_the_end_of_a_dead_folder_that_fails_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("odd")

    dead = tmp_path / "accel-memory-1"
    os.close(job_folder.make_folder(dead))
    monkeypatch.setattr(job_folder, "end_folder", fail)
    with pytest.raises(ValueError, match="odd"):
        job_folder.end_dead_folders(tmp_path, pytest.fail)
    os.close(job_folder._lock(dead))


def test_a_folder_that_another_process_ends_is_waited_for(tmp_path: Path) -> None:
    """And that of a launcher that lives is not."""
    dead = tmp_path / "accel-memory-1"
    held = job_folder.make_folder(dead)
    job_folder.end_dead_folders(tmp_path, pytest.fail)
    (dead / ".ends").touch()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(job_folder.end_dead_folders, tmp_path, pytest.fail)
        time.sleep(0.2)
        assert not waits.done()
        shutil.rmtree(dead)
        os.close(held)
        waits.result(30)


def test_the_lock_of_a_launcher_that_has_just_died_is_waited_for(tmp_path: Path) -> None:
    dead = tmp_path / "accel-memory-1"
    held = job_folder.make_folder(dead)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(job_folder.end_dead_folders, tmp_path, pytest.fail, own=dead)
        time.sleep(0.2)
        assert not waits.done()
        os.close(held)
        waits.result(30)
    assert not dead.exists()


def test_a_disk_without_locks_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Function not implemented"):
        job_folder.make_folder(tmp_path / "accel-memory-1")
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_in_a_script_that_was_launched_has_a_job_of_its_own(tmp_path: Path) -> None:
    """Its folder is where it says, and ends with it; and without one there is none."""
    (tmp_path / "script.py").touch()
    environ, place = {MEMORY_CHECKPOINTS: "/elsewhere", "ACCEL_MEMORY_CHECKPOINT_EVERY": "5"}, tmp_path / "place"
    flags = ["--cpu", "--memory_checkpoint_dir", str(place), str(tmp_path / "script.py")]

    def start(mine: Job) -> JobResult:
        assert [str(path) for path in place.iterdir()] == [mine.environ[MEMORY_CHECKPOINTS]]
        return JobResult(1)

    run_with_memory(read_job(resolve_options(flags, environ)), start, pytest.fail)
    assert list(place.iterdir()) == []
    assert MEMORY_CHECKPOINTS not in read_job(resolve_options([str(tmp_path / "script.py")], environ)).environ


def test_a_rank_of_a_launcher_uses_the_memory_of_that_launcher(tmp_path: Path) -> None:
    """It may be a launcher itself, as a shell script starts it that is a rank. It cannot name another folder."""
    (tmp_path / "script.py").touch()
    environ = {
        MEMORY_CHECKPOINTS: "/elsewhere",
        "ACCEL_MEMORY_CHECKPOINT_EVERY": "5",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    inside = read_job(resolve_options([str(tmp_path / "script.py")], environ))
    assert run_with_memory(inside, lambda mine: JobResult(int(mine is inside)), pytest.fail) == JobResult(1)
    assert inside.environ == environ
    named = job(tmp_path, "--memory_checkpoint_dir", str(tmp_path), environ=environ)
    refused(named, "another launcher (RANK=1, WORLD_SIZE=2) has started this one: leave the option out")


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    inside = tmp_path / "script.py" / "in"
    asked = read_job(
        resolve_options(["--cpu", "--memory_checkpoint_dir", str(inside), str(tmp_path / "script.py")], {})
    )
    with pytest.raises(CannotRun, match=f"no checkpoints can be kept in memory: .*{inside}"):
        run_with_memory(asked, lambda mine: JobResult(1), pytest.fail)
