"""Several jobs, on one machine or on several, that save into one folder.

Another machine is stood in for by another name and by locks that always succeed, as those of folders on NFS do.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from accel_checkpoint import Manifest, StagedCheckpoint, collect, recover
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import hidden_path
from saved_files import number_of

DAY_S = 24 * 3600


def stage_of(target: Path, number: int, filesystem: Filesystem | None = None) -> StagedCheckpoint:
    stage = StagedCheckpoint(target, filesystem)
    stage.write("words.txt", [b"number ", str(number).encode()])
    stage.write(f"only-{number}.txt", [b"x"])
    stage.seal(Manifest({"number": number}, stage.files))
    return stage


@contextmanager
def another_machine() -> Iterator[None]:
    """In this block the process is one of another machine, on the same disk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("accel_checkpoint.hidden_folder.this_machine", lambda: "00000000")
        patched.setattr(fcntl, "flock", lambda descriptor, operation: None)
        yield


def collect_here(target: Path) -> None:
    collect(target.parent)


def collect_elsewhere(target: Path) -> None:
    with another_machine():
        collect(target.parent)


def recover_elsewhere(target: Path) -> None:
    with another_machine():
        recover(target)


OTHER_JOBS = [collect_here, collect_elsewhere, recover_elsewhere]


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)


def test_a_job_on_another_machine_leaves_a_save_alone(tmp_path: Path) -> None:
    stage = stage_of(tmp_path / "last", 1)
    with another_machine():
        assert collect(tmp_path) == []
    assert stage.commit()
    assert number_of(tmp_path / "last") == 1


def test_what_another_machine_left_goes_when_nothing_has_changed_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_machine():
        left = stage_of(tmp_path / "last", 1).path
    later(monkeypatch, DAY_S - 60)
    assert collect(tmp_path) == []
    later(monkeypatch, 120)
    assert collect(tmp_path) == [left.name]
    assert os.listdir(tmp_path) == []


def test_a_save_of_another_machine_that_writes_at_last_is_not_a_day_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its folder has changed but one file in it, whose time the file system sets."""
    with another_machine():
        stage = stage_of(tmp_path / "last", 1)
    old = os.stat_result
    changed = Path.lstat(stage.path / "words.txt")

    def lstat(path: Path) -> os.stat_result:
        fields = list(changed)
        fields[9] = int(changed.st_ctime) - (0 if path.name == "words.txt" else 2 * DAY_S)
        return old(fields)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert collect(tmp_path) == []
    assert stage.path.is_dir()


def test_on_a_disk_without_locks_nothing_goes_before_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    stage_of(tmp_path / "last", 1).commit()
    stage = stage_of(tmp_path / "last", 2)
    assert collect(tmp_path) == []
    assert stage.commit()
    assert number_of(tmp_path / "last") == 2
    stage_of(tmp_path / "last", 3)
    later(monkeypatch, DAY_S + 60)
    assert len(collect(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["last"]


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("other", OTHER_JOBS)
def test_a_replacing_save_survives_what_other_jobs_do_meanwhile(
    tmp_path: Path, interrupted: Callable[..., Filesystem], other: Callable[[Path], None], at: int
) -> None:
    """Between the two renames there is no checkpoint of that name, and the old one looks left over."""
    target = tmp_path / "last"
    stage_of(target, 1).commit()
    (target / "plots").mkdir()
    (target / "plots" / "a.png").write_text("a user's")
    (target / "notes.txt").write_text("a user's too")
    assert stage_of(target, 2, interrupted(partial(other, target), at)).commit()
    assert number_of(target) == 2
    assert (target / "plots" / "a.png").read_text() == "a user's"
    assert (target / "notes.txt").read_text() == "a user's too"
    assert not (target / "only-1.txt").exists()
    assert os.listdir(tmp_path) == ["last"]


def test_a_save_goes_on_if_another_has_just_moved_the_checkpoint(
    tmp_path: Path, interrupted: Callable[..., Filesystem]
) -> None:
    target = tmp_path / "last"
    stage_of(target, 1).commit()
    move = partial(target.rename, hidden_path(target, "old"))
    assert stage_of(target, 2, interrupted(move, 0)).commit()
    assert number_of(target) == 2


def test_a_replaced_checkpoint_gets_no_name_but_its_own(tmp_path: Path) -> None:
    stage_of(tmp_path / "last", 1).commit()
    (tmp_path / "last").rename(hidden_path(tmp_path / "last", "old"))
    assert not recover(tmp_path / "best")
    assert not (tmp_path / "best").exists()
    assert recover(tmp_path / "last")


@pytest.mark.parametrize("at", range(5))
def test_two_saves_may_replace_one_checkpoint_at_the_same_time(
    tmp_path: Path, interrupted: Callable[..., Filesystem], at: int
) -> None:
    target = tmp_path / "last"

    def save_as_well() -> None:
        assert stage_of(target, 7).commit()

    stage_of(target, 1).commit()
    (target / "notes.txt").write_text("a user's")
    assert stage_of(target, 2, interrupted(save_as_well, at)).commit()
    assert number_of(target) == (2 if at < 2 else 7)
    assert (target / "notes.txt").read_text() == "a user's"
    assert os.listdir(tmp_path) == ["last"]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("other", OTHER_JOBS)
def test_two_jobs_that_clean_up_the_same_do_each_other_no_harm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Callable[..., Filesystem],
    other: Callable[[Path], None],
    at: int,
) -> None:
    target = tmp_path / "last"
    stage_of(target, 2).commit()
    shutil.copytree(target, old := hidden_path(target, "old"))
    (old / "notes.txt").write_text("a user's")
    shutil.copytree(target, hidden_path(target, "saving"))
    later(monkeypatch, DAY_S + 60)
    collect(tmp_path, interrupted(partial(other, target), at))
    assert number_of(target) == 2
    assert (target / "notes.txt").read_text() == "a user's"
    assert os.listdir(tmp_path) == ["last"]


def test_a_half_removed_checkpoint_leaves_nothing_in_its_successor(tmp_path: Path) -> None:
    """Its manifest may go first; then its files would look like a user's."""

    class Dying(Filesystem):
        def remove(self, path: Path) -> None:
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    target = tmp_path / "last"
    stage_of(target, 1).commit()
    with pytest.raises(KeyboardInterrupt):
        stage_of(target, 2, Dying()).commit()
    collect(tmp_path)
    assert number_of(target) == 2
    assert sorted(os.listdir(target)) == ["manifest.json", "only-2.txt", "words.txt"]
    assert os.listdir(tmp_path) == ["last"]


def test_a_lock_ends_with_the_save_though_the_process_has_forked(tmp_path: Path) -> None:
    """As loader workers are: they have the lock's descriptor too."""
    stage = stage_of(tmp_path / "last", 1)
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        stage.filesystem.rename(stage.path, left := hidden_path(tmp_path / "last", "saving"))
        stage.abandon()
        assert collect(tmp_path) == [left.name]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_an_interrupt_in_naming_gives_the_old_checkpoint_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_of(tmp_path / "last", 1).commit()
    rename = Filesystem.rename

    def interrupted_when_named(self: Filesystem, path: Path, to: Path) -> None:
        if path.name.endswith(".saving") and to == tmp_path / "last":
            raise KeyboardInterrupt
        rename(self, path, to)

    monkeypatch.setattr(Filesystem, "rename", interrupted_when_named)
    stage = stage_of(tmp_path / "last", 2)
    with pytest.raises(KeyboardInterrupt):
        stage.commit()
    stage.abandon()
    assert number_of(tmp_path / "last") == 1
    assert os.listdir(tmp_path) == ["last"]
