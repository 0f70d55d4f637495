"""What is in use is locked, and stays: hidden folders of saves, checkpoints that are replaced, and those that are read.

A job of another process is stood in for by a thread, or by what happens between two effects: locks belong to open
folders, and not to processes.
"""

import errno
import fcntl
import gc
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import (
    CheckpointError,
    Manifest,
    StagedCheckpoint,
    TensorFile,
    collect,
    read_manifest,
)
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import hidden_path, lock_folder, new_tag
from accel_checkpoint.retention import checkpoint_path, retain
from accel_testing import stretched
from saved_files import number_of


def finish(stage: StagedCheckpoint, number: int) -> None:
    stage.write("words.txt", [b"number ", str(number).encode()])
    stage.seal(Manifest({"number": number}, stage.files))
    assert stage.commit()


def save(target: Path, number: int) -> None:
    finish(StagedCheckpoint(target), number)


class Slow(Filesystem):
    """Removes when it may; says when it would."""

    def __init__(self) -> None:
        self.would, self.may = threading.Event(), threading.Event()

    def remove(self, path: Path) -> None:
        self.would.set()
        assert self.may.wait(stretched(30))
        super().remove(path)


class CollectedAtOnce(Filesystem):
    """A collector of another job locks the first hidden folder of a save before the save does."""

    def __init__(self) -> None:
        self.slow, self.collector = Slow(), threading.Thread()

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        if not self.slow.would.is_set():
            self.collector = threading.Thread(target=collect, args=(path.parent, self.slow))
            self.collector.start()
            assert self.slow.would.wait(stretched(30))


@pytest.mark.parametrize("tag", [None, new_tag()], ids=["of one process", "of several"])
def test_a_collector_that_locks_before_the_save_takes_none_of_its_files(tmp_path: Path, tag: str | None) -> None:
    save(tmp_path / "last", 1)
    filesystem = CollectedAtOnce()
    stage = StagedCheckpoint(tmp_path / "last", filesystem, tag=tag)
    stage.write("first.txt", [b"x"])
    filesystem.slow.may.set()
    filesystem.collector.join()
    finish(stage, 2)
    assert number_of(tmp_path / "last") == 2
    assert sorted(read_manifest(tmp_path / "last").files) == ["first.txt", "words.txt"]
    assert os.listdir(tmp_path) == ["last"]


def test_a_folder_that_went_between_its_making_and_its_lock_is_made_again(tmp_path: Path) -> None:
    gone = list[str]()

    class Collected(Filesystem):
        def make_folder(self, path: Path) -> None:
            super().make_folder(path)
            if len(gone) < 3:
                gone.extend(collect(path.parent))

    stage = StagedCheckpoint(tmp_path / "last", Collected(), tag=new_tag())
    assert gone == [stage.path.name] * 3
    finish(stage, 1)
    assert number_of(tmp_path / "last") == 1


def test_a_save_whose_folder_never_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Removed(Filesystem):
        def make_folder(self, path: Path) -> None:
            super().make_folder(path)
            path.rmdir()

    monkeypatch.setattr("accel_checkpoint.staging.MADE_WITHIN_S", 0.0)
    with pytest.raises(CheckpointError, match=r"other jobs remove .* save to another folder"):
        StagedCheckpoint(tmp_path / "last", Removed())


@pytest.mark.parametrize("at", range(6))
def test_a_collector_leaves_all_folders_of_a_save_that_lives(
    tmp_path: Path, interrupted: Callable[..., Filesystem], at: int
) -> None:
    """Also the checkpoint that it replaces, between the two renames."""
    collected, unchanged = list[str](), []

    def collect_meanwhile() -> None:
        before = sorted(os.listdir(tmp_path))
        collected.extend(collect(tmp_path))
        unchanged.append(before == sorted(os.listdir(tmp_path)))

    save(tmp_path / "exp0", 1)
    finish(StagedCheckpoint(tmp_path / "exp0", interrupted(collect_meanwhile, at)), 2)
    assert (collected, all(unchanged)) == ([], True)
    assert bool(unchanged) == (at < 4)
    assert number_of(tmp_path / "exp0") == 2
    assert os.listdir(tmp_path) == ["exp0"]


def test_what_disappears_from_a_save_without_locks_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine takes a folder for abandoned in which nothing has changed for a day."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    save(tmp_path / "last", 1)
    monkeypatch.setattr(fcntl, "flock", refuse)
    stage = StagedCheckpoint(tmp_path / "last")
    stage.write("first.txt", [b"x"])
    (stage.path / "first.txt").unlink()
    with pytest.raises(CheckpointError, match=r"first\.txt of .* disappeared before it was whole"):
        finish(stage, 2)
    stage.abandon()
    assert number_of(tmp_path / "last") == 1
    assert os.listdir(tmp_path) == ["last"]


def test_a_process_without_free_descriptors_is_not_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_of = os.open

    def full(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_CLOEXEC and flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_of(path, flags, *mode)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(CheckpointError, match="Too many open files"):
        StagedCheckpoint(tmp_path / "last")


def test_a_forked_process_that_forgets_a_save_leaves_its_lock(tmp_path: Path) -> None:
    """As a worker of a loader does that was forked during a save in the background."""
    stages = [StagedCheckpoint(tmp_path / "last")]
    child = os.fork()
    if not child:
        stages.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert collect(tmp_path) == []
    finish(stages[0], 1)
    assert number_of(tmp_path / "last") == 1


def test_what_cannot_be_removed_fails_no_save_and_keeps_nothing_else(tmp_path: Path) -> None:
    left = [hidden_path(tmp_path / name, "saving") for name in ("another", "mine")]

    class Forbidden(Filesystem):
        def rename(self, path: Path, to: Path) -> None:
            if path == left[0]:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            super().rename(path, to)

    for path in left:
        path.mkdir()
    assert collect(tmp_path, Forbidden()) == [left[1].name]
    assert os.listdir(tmp_path) == [left[0].name]


def test_retention_leaves_what_is_loaded_until_the_next_time(tmp_path: Path) -> None:
    for number in range(3):
        save(checkpoint_path(tmp_path, number), number)
    with lock_folder(checkpoint_path(tmp_path, 0), shared=True):
        assert retain(tmp_path, 1) == [checkpoint_path(tmp_path, 1)]
        assert number_of(checkpoint_path(tmp_path, 0)) == 0
    assert retain(tmp_path, 1) == [checkpoint_path(tmp_path, 0)]
    assert os.listdir(tmp_path) == ["checkpoint_2"]


def test_retention_of_two_jobs_at_the_same_time_is_no_error(tmp_path: Path) -> None:
    class Faster(Filesystem):
        def rename(self, path: Path, to: Path) -> None:
            retain(tmp_path, 1)
            shutil.rmtree(path, ignore_errors=True)
            super().rename(path, to)

    for number in range(4):
        save(checkpoint_path(tmp_path, number), number)
    assert retain(tmp_path, 1, Faster()) == []
    assert os.listdir(tmp_path) == ["checkpoint_3"]


def test_a_file_that_another_job_has_replaced_is_not_linked(tmp_path: Path) -> None:
    """It has the same name and the same size."""
    save(tmp_path / "last", 1)
    known = read_manifest(tmp_path / "last").files["words.txt"]
    save(tmp_path / "last", 2)
    stage = StagedCheckpoint(tmp_path / "last")
    assert not stage.link("words.txt", tmp_path / "last" / "words.txt", known)
    finish(stage, 1)
    assert number_of(tmp_path / "last") == 1


def test_a_file_that_vanishes_while_it_is_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened twice; torch, which is second, has an error of its own."""
    StagedCheckpoint(tmp_path / "last").write_tensors("x.safetensors", {"x": torch.ones(2)})
    (path,) = tmp_path.rglob("x.safetensors")
    open_file = torch.UntypedStorage.from_file

    def vanished(name: str, *settings: Any) -> Any:
        return open_file(f"{name}0", *settings)

    with monkeypatch.context() as patched:
        patched.setattr(torch.UntypedStorage, "from_file", vanished)
        with pytest.raises(CheckpointError, match=rf"{path} .*No such file"):
            TensorFile(path)
