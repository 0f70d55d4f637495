"""Which checkpoints there are, what is kept of them, and what a new one may take the place of."""

import errno
import gc
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from accel_checkpoint import (
    CheckpointError,
    Manifest,
    StagedCheckpoint,
    collect,
    is_whole,
    read_manifest,
    recover,
    require_whole,
)
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import hidden_path
from accel_checkpoint.retention import checkpoint_path, list_checkpoints, next_number, retain
from saved_files import contents


def list_whole_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    return [(number, path) for number, path in list_checkpoints(folder) if is_whole(path)]


HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}-[0-9a-f]{8}\.(saving|old)")


def save(target: Path, number: int, filesystem: Filesystem | None = None) -> None:
    stage = StagedCheckpoint(target, filesystem)
    stage.write("words.txt", [b"number ", str(number).encode()])
    (stage.path / "hook").mkdir()
    (stage.path / "hook" / "own.txt").write_text("a hook's")
    stage.adopt()
    stage.seal(Manifest({"number": number}, stage.files))
    stage.commit()


def number_of(target: Path) -> int:
    """The number that the whole checkpoint there was saved with."""
    manifest = read_manifest(target)
    require_whole(target, manifest)
    number: int = manifest.about["number"]
    assert (target / "words.txt").read_text() == f"number {number}"
    return number


def save_numbered(folder: Path, *numbers: int) -> None:
    for number in numbers:
        save(checkpoint_path(folder, number), number)


def left_half(path: Path) -> Path:
    """What a process leaves that dies while it saves."""
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"half of")
    return path


OTHERS = ("checkpoint_", "checkpoint_x", "checkpoint_1.bak", "mycheckpoint_1", "checkpoint_-1", "Checkpoint_1", "best")


def with_others(folder: Path) -> dict[str, bytes | None]:
    for name in OTHERS:
        save(folder / name, 7)
    (folder / "checkpoint_99").write_text("a file")
    (folder / ".notes.saving").mkdir()
    (folder / ".x.zzzzzzzz-zzzzzzzz.saving").mkdir()
    (folder / ".x.00112233-00112233.old.txt").write_text("mine")
    return contents(folder)


def test_the_order_is_that_of_the_numbers(tmp_path: Path) -> None:
    with_others(tmp_path)
    save_numbered(tmp_path, 10, 9, 2, 100)
    assert [number for number, _ in list_checkpoints(tmp_path)] == [2, 9, 10, 100]
    assert [path.name for _, path in list_whole_checkpoints(tmp_path)] == [
        f"checkpoint_{number}" for number in (2, 9, 10, 100)
    ]
    assert next_number(tmp_path) == 101


def test_a_number_is_not_given_twice(tmp_path: Path) -> None:
    assert next_number(tmp_path / "nothing") == 0
    assert list_checkpoints(tmp_path / "nothing") == []
    assert next_number(tmp_path) == 0
    save_numbered(tmp_path, 0)
    assert next_number(tmp_path) == 1
    left_half(tmp_path / "checkpoint_5")
    assert next_number(tmp_path) == 6
    assert [number for number, _ in list_whole_checkpoints(tmp_path)] == [0]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_the_newest_whole_ones_are_kept_and_nobody_elses_are_touched(tmp_path: Path, limit: int) -> None:
    before = with_others(tmp_path)
    save_numbered(tmp_path, 1, 3, 8, 20)
    half = left_half(tmp_path / "checkpoint_30")
    os.truncate(tmp_path / "checkpoint_8" / "words.txt", 3)
    removed = retain(tmp_path, limit)
    whole = [1, 3, 20]
    assert [number for number, _ in list_whole_checkpoints(tmp_path)] == whole[-limit:]
    assert [path.name for path in removed] == [f"checkpoint_{number}" for number in whole[:-limit]]
    assert half.is_dir()
    assert {name: one for name, one in contents(tmp_path).items() if name in before} == before
    assert not [name for name in os.listdir(tmp_path) if HIDDEN.fullmatch(name)]


def test_what_goes_is_whole_under_its_name_or_gone(tmp_path: Path) -> None:
    """A process that dies in the middle of the removal leaves something that is removed later."""
    save_numbered(tmp_path, 1, 2, 3)

    class Half(Filesystem):
        def remove(self, path: Path) -> None:
            (path / "words.txt").unlink()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retain(tmp_path, 1, Half())
    assert [number for number, _ in list_checkpoints(tmp_path)] == [2, 3]
    assert number_of(checkpoint_path(tmp_path, 2)) == 2
    collect(tmp_path)
    retain(tmp_path, 1)
    assert os.listdir(tmp_path) == ["checkpoint_3"]


def test_a_link_to_a_checkpoint_goes_without_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "mine", 1)
    save_numbered(tmp_path / "run", 2)
    (tmp_path / "run" / "checkpoint_1").symlink_to(tmp_path / "elsewhere" / "mine")
    retain(tmp_path / "run", 1)
    assert os.listdir(tmp_path / "run") == ["checkpoint_2"]
    assert number_of(tmp_path / "elsewhere" / "mine") == 1


def test_tidying_removes_what_was_cut_off_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_others(tmp_path)
    save_numbered(tmp_path, 1)
    left_half(hidden_path(tmp_path / "checkpoint_2", "saving"))
    left_half(hidden_path(tmp_path / "checkpoint_1", "old"))
    others = [hidden_path(tmp_path / f"checkpoint_{number}", "saving") for number in (3, 4)]
    others[0].symlink_to(tmp_path / "best")
    others[1].write_text("a file")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 48 * 3600)  # nothing in them changes for two days
    collect(tmp_path)
    left = contents(tmp_path)
    assert {name: one for name, one in left.items() if name in before} == before
    assert {name for name in left if HIDDEN.fullmatch(name)} == {path.name for path in others}
    assert number_of(checkpoint_path(tmp_path, 1)) == 1
    collect(tmp_path / "nothing")
    assert collect(tmp_path / "nothing") == []


def test_a_hidden_folder_that_another_machine_removes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = left_half(hidden_path(tmp_path / "checkpoint_1", "saving"))
    left = left_half(hidden_path(tmp_path / "checkpoint_2", "saving"))
    stat_of = Path.stat

    def stale(path: Path, **options: Any) -> os.stat_result:
        if path == gone:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat_of(path, **options)

    monkeypatch.setattr(Path, "stat", stale)
    assert collect(tmp_path) == [left.name]


def test_a_checkpoint_gets_its_name_back(tmp_path: Path) -> None:
    save_numbered(tmp_path, 1, 2)
    checkpoint_path(tmp_path, 1).rename(hidden_path(checkpoint_path(tmp_path, 1), "old"))
    left_half(hidden_path(checkpoint_path(tmp_path, 1), "old"))
    assert collect(tmp_path / "nothing") == []
    collect(tmp_path)
    assert [number for number, _ in list_whole_checkpoints(tmp_path)] == [1, 2]
    assert number_of(checkpoint_path(tmp_path, 1)) == 1
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", "checkpoint_2"]
    assert not recover(checkpoint_path(tmp_path, 1))


def test_of_several_replaced_checkpoints_the_newest_gets_the_name_back(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path / "last", number)
        old = hidden_path(tmp_path / "last", "old")
        (tmp_path / "last").rename(old)
        os.utime(old, (number, 5 - abs(number - 2)))  # the second is the newest
    assert recover(tmp_path / "last")
    assert number_of(tmp_path / "last") == 2


def test_a_checkpoint_replaced_while_it_is_restored_is_no_error(tmp_path: Path) -> None:
    class Replaced(Filesystem):
        def rename(self, path: Path, to: Path) -> None:
            path.rename(hidden_path(to, "old"))  # another machine was faster, and a save there replaces it
            super().rename(path, to)

    save(tmp_path / "last", 1)
    (tmp_path / "last").rename(hidden_path(tmp_path / "last", "old"))
    assert recover(tmp_path / "last", Replaced())
    assert recover(tmp_path / "last")
    assert number_of(tmp_path / "last") == 1


class Overtaken(Filesystem):
    """Another machine does the same just before each rename."""

    def rename(self, path: Path, to: Path) -> None:
        super().rename(path, to)
        super().rename(path, to)


class Taken(Filesystem):
    """Another machine gives another checkpoint the name just before each rename."""

    def rename(self, path: Path, to: Path) -> None:
        save(to, 7)
        super().rename(path, to)


@pytest.mark.parametrize(("filesystem", "number"), [(Overtaken(), 1), (Taken(), 7)])
def test_of_machines_that_recover_at_the_same_time_none_is_refused(
    tmp_path: Path, filesystem: Filesystem, number: int
) -> None:
    """On a disk that they share each machine's first process tries, before a load."""
    save(tmp_path / "last", 1)
    (tmp_path / "last").rename(hidden_path(tmp_path / "last", "old"))
    assert recover(tmp_path / "last", filesystem)
    assert number_of(tmp_path / "last") == number


def test_a_disk_that_refuses_to_recover_is_told(tmp_path: Path) -> None:
    class Full(Filesystem):
        def rename(self, path: Path, to: Path) -> None:
            raise OSError(5, "Input/output error")

    save(tmp_path / "last", 1)
    (tmp_path / "last").rename(hidden_path(tmp_path / "last", "old"))
    with pytest.raises(OSError, match="Input/output"):
        recover(tmp_path / "last", Full())


def test_nothing_gets_a_name_that_is_taken_or_is_not_whole(tmp_path: Path) -> None:
    save_numbered(tmp_path, 1)
    half = left_half(hidden_path(tmp_path / "last", "old"))
    assert not recover(tmp_path / "last")
    assert half.is_dir()
    assert not is_whole(tmp_path / "last")
    collect(tmp_path)
    assert half.is_dir()  # it may be all that is left of it


def test_what_others_put_beside_a_checkpoint_stays_when_it_is_replaced(tmp_path: Path) -> None:
    save(tmp_path / "last", 1)
    (tmp_path / "last" / "notes.txt").write_text("mine")
    (tmp_path / "last" / "plots").mkdir()
    (tmp_path / "last" / "plots" / "a.png").write_text("mine too")
    (tmp_path / "last" / "hook" / "by hand.txt").write_text("and mine")
    (tmp_path / "last" / "pictures").symlink_to("plots")
    save(tmp_path / "last", 2)
    assert (tmp_path / "last" / "pictures").readlink() == Path("plots")
    assert number_of(tmp_path / "last") == 2
    assert (tmp_path / "last" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "last" / "plots" / "a.png").read_text() == "mine too"
    assert (tmp_path / "last" / "hook" / "by hand.txt").read_text() == "and mine"
    assert os.listdir(tmp_path) == ["last"]


def die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("effects", range(6))
def test_they_stay_also_if_the_process_dies_before_it_has_moved_them(
    tmp_path: Path, interrupted: Callable[..., Filesystem], effects: int
) -> None:
    save(tmp_path / "last", 1)
    for name in ("notes.txt", "more.txt"):
        (tmp_path / "last" / name).write_text("mine")
    with suppress(KeyboardInterrupt):
        save(tmp_path / "last", 2, interrupted(die, effects, from_there_on=True))
    gc.collect()
    recover(tmp_path / "last")
    collect(tmp_path)
    save(tmp_path / "last", 3)
    assert number_of(tmp_path / "last") == 3
    assert (tmp_path / "last" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "last" / "more.txt").read_text() == "mine"


def test_files_of_users_are_durable_before_the_old_checkpoint_goes(tmp_path: Path) -> None:
    happened: list[tuple[str, Path]] = []

    class Noted(Filesystem):
        def rename(self, path: Path, to: Path) -> None:
            happened.append(("rename", to))
            super().rename(path, to)

        def flush_folder(self, path: Path) -> None:
            happened.append(("flush", path))

        def remove(self, path: Path) -> None:
            happened.append(("remove", path))
            super().remove(path)

    target = tmp_path / "last"
    save(target, 1)
    (target / "notes.txt").write_text("mine")
    save(target, 2, Noted())
    moved = happened.index(("rename", target / "notes.txt"))
    assert [event for event, _ in happened[moved:]] == ["rename", "flush", "rename", "remove"]
    assert happened[moved + 1] == ("flush", target)


def test_a_file_of_a_user_does_not_replace_a_file_of_the_new_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "last", 1)
    stage = StagedCheckpoint(tmp_path / "last")
    stage.write("words.txt", [b"number 2"])
    stage.write("notes.txt", [b"of the checkpoint"])
    stage.seal(Manifest({"number": 2}, stage.files))
    (tmp_path / "last" / "notes.txt").write_text("mine")
    stage.commit()
    assert number_of(tmp_path / "last") == 2
    assert (tmp_path / "last" / "notes.txt").read_text() == "of the checkpoint"


@pytest.mark.parametrize("name", ["last", "new\nline"], ids=ascii)
def test_what_a_save_has_replaced_is_tidied_up_whatever_its_name(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, 1)
    shutil.copytree(tmp_path / name, hidden_path(tmp_path / name, "old"))
    assert len(collect(tmp_path)) == 1
    assert os.listdir(tmp_path) == [name]


def test_two_processes_may_remove_one_folder_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left_half(tmp_path / "left")
    (folder / "more").mkdir()
    unlink = os.unlink

    def unlink_late(path: str, **options: Any) -> None:
        unlink(path, **options)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "unlink", unlink_late)
    Filesystem().remove(folder)
    assert not folder.exists()


def test_a_file_of_a_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    stage = StagedCheckpoint(tmp_path / "last")
    (stage.path / "model.safetensors").write_text("of a hook")
    with pytest.raises(CheckpointError, match=r"File exists: .*model\.safetensors"):
        stage.write("model.safetensors", [b"x"])
    stage.abandon()


def test_a_damaged_manifest_takes_nobodys_files_along(tmp_path: Path) -> None:
    save(tmp_path / "last", 1)
    (tmp_path / "last" / "notes.txt").write_text("mine")
    os.truncate(tmp_path / "last" / "manifest.json", 40)
    with suppress(CheckpointError):
        save(tmp_path / "last", 2)
    assert (tmp_path / "last" / "notes.txt").read_text() == "mine"
