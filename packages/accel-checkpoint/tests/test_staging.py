import errno
import itertools
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
    is_whole,
    read_manifest,
    recover,
    require_replaceable,
    require_whole,
)
from accel_checkpoint.filesystem import FileDigest, Filesystem
from accel_checkpoint.hidden_folder import lock_folder
from saved_files import contents

KEPT = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT)


def filled(target: Path, number: int, filesystem: Filesystem | None = None) -> StagedCheckpoint:
    stage = StagedCheckpoint(target, filesystem)
    try:
        stage.write_tensors("model.safetensors", {"x": torch.full((100,), float(number))})
        stage.write("words.txt", [b"number ", str(number).encode()])
        (stage.path / "hook").mkdir(exist_ok=True)
        (stage.path / "hook" / "own.txt").write_text("a hook's")
        stage.adopt()
        stage.seal(Manifest({"number": number}, stage.files))
    except BaseException:
        stage.abandon()
        raise
    return stage


def save(target: Path, number: int, filesystem: Filesystem | None = None) -> None:
    stage = filled(target, number, filesystem)
    try:
        stage.commit()
    except BaseException:
        stage.abandon()
        raise


def number_of(target: Path) -> int:
    """The number that the whole checkpoint there was saved with."""
    manifest = read_manifest(target)
    require_whole(target, manifest)
    number: int = manifest.about["number"]
    assert (TensorFile(target / "model.safetensors")["x"] == number).all()
    return number


class Failing(Filesystem):
    """Fails at one of its effects, and at removals too where the disk cannot be written any more."""

    def __init__(self, at: int, number: int, *, then: bool = False) -> None:
        self.at, self.number, self.then, self.count = at, number, then, itertools.count()
        self.failed = ""

    def _effect(self, what: str, path: Path) -> None:
        if self.then if self.failed else next(self.count) == self.at:
            self.failed = self.failed or what
            raise OSError(self.number, os.strerror(self.number), str(path))

    def make_folder(self, path: Path) -> None:
        self._effect("make_folder", path)
        super().make_folder(path)

    def write(self, path: Path, content: Iterable[memoryview | bytes]) -> FileDigest:
        def torn() -> Iterator[memoryview | bytes]:
            rest = iter(content)
            yield from itertools.islice(rest, 1)
            self._effect("write", path)
            yield from rest

        return super().write(path, torn())

    def flush_file(self, path: Path) -> None:
        self._effect("flush_file", path)
        super().flush_file(path)

    def flush_folder(self, path: Path) -> None:
        self._effect("flush_folder", path)
        super().flush_folder(path)

    def rename(self, path: Path, to: Path) -> None:
        self._effect("rename", path)
        super().rename(path, to)

    def remove(self, path: Path) -> None:
        if self.failed and self.then:
            raise OSError(self.number, os.strerror(self.number), str(path))
        super().remove(path)


def test_it_appears_whole_and_with_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "last"
    stage = filled(target, 1)
    assert not target.exists()
    assert not is_whole(target)
    assert stage.commit()
    with lock_folder(target):  # the save has ended, though its object is still there
        assert number_of(target) == 1
    assert sorted(os.listdir(target)) == ["hook", "manifest.json", "model.safetensors", "words.txt"]
    assert os.listdir(target.parent) == ["last"]


def refusal(work: Callable[[], None]) -> str:
    try:
        work()
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("number", KEPT, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("before", [None, 1], ids=["first", "second"])
def test_an_error_of_the_disk_at_any_effect_leaves_what_was_there(
    tmp_path: Path, number: int, before: int | None
) -> None:
    """Fault 5. Only an error after the new one has its name may leave that one there."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        folder.mkdir()
        target = folder / "last"
        if before is not None:
            save(target, before)
        filesystem = Failing(at, number)
        words = refusal(partial(save, target, 2, filesystem))
        now = number_of(target) if target.exists() else None
        if not words:
            break
        there = f"the checkpoint {target} is there, but its disk may not keep it" in words
        assert there or f"{target} (" in words
        assert there or re.search(rf"the disk of {folder}.* has [\d,]+ of [\d,]+ bytes free", words)
        assert now == (2 if there else before), filesystem.failed
        assert [name for name in os.listdir(folder) if name.endswith(".saving")] == []
        assert now == 2 or os.listdir(folder) == (["last"] if before else [])
        collect(folder)
        assert os.listdir(folder) == (["last"] if now else [])
    assert at >= 8
    assert now == 2


@pytest.mark.parametrize("at", range(5))
def test_a_disk_that_lets_nothing_be_removed_says_so_and_no_more(tmp_path: Path, at: int) -> None:
    """As when the system has made it read-only after an error."""
    save(tmp_path / "last", 1)
    with pytest.raises(CheckpointError, match="bytes free"):
        save(tmp_path / "last", 2, Failing(at, errno.EROFS, then=True))
    assert number_of(tmp_path / "last") == 1
    collect(tmp_path)
    assert os.listdir(tmp_path) == ["last"]


def test_a_file_that_may_not_grow_so_large_is_no_room(tmp_path: Path) -> None:
    save(tmp_path / "last", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(CheckpointError, match=r"last \(no room: .*bytes free; what was there before stays"):
            save(tmp_path / "last", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["last"]
    assert number_of(tmp_path / "last") == 1


def test_a_folder_that_may_not_be_written_into_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(CheckpointError, match=rf"{name}/last \(PermissionError.*bytes free"):
                save(folder / "last", 1)
        finally:
            if root:
                os.seteuid(0)
        assert os.listdir(folder) == []


def test_a_full_disk_half_way_through_a_piece_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.write may take less than it is given; what it leaves is written after it."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, piece: write(file, bytes(piece)[:7]))
    save(tmp_path / "last", 3)
    assert number_of(tmp_path / "last") == 3


WAITS = """
import sys, time
from pathlib import Path
from accel_checkpoint import StagedCheckpoint
stage = StagedCheckpoint(Path(sys.argv[1]))
stage.write("a", [b"x"])
print("there", flush=True)
time.sleep(60)
"""


def test_what_a_living_writer_writes_stays_and_what_a_dead_one_left_goes(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WAITS, str(tmp_path / "last")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "there\n"
        assert collect(tmp_path) == []
        (name,) = os.listdir(tmp_path)
        writer.send_signal(signal.SIGKILL)
    assert collect(tmp_path) == [name]
    assert os.listdir(tmp_path) == []


def test_ones_own_stage_stays_while_it_is_written(tmp_path: Path) -> None:
    stage = filled(tmp_path / "last", 1)
    assert collect(tmp_path) == []
    assert stage.commit()
    assert number_of(tmp_path / "last") == 1


def test_a_save_whose_naming_failed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would lie there, locked, as long as the process lives, which may try again and again."""
    accel = pytest.importorskip("accel")
    accelerator = accel.Accelerator(cpu=True)
    with monkeypatch.context() as patched:
        patched.setattr(Filesystem, "rename", Failing(0, errno.EIO).rename)
        with pytest.raises(CheckpointError, match="bytes free"):
            accelerator.save_state(tmp_path / "last")
    collect(tmp_path)
    assert os.listdir(tmp_path) == []


def test_of_two_that_write_to_one_name_each_is_whole(tmp_path: Path) -> None:
    """Fault 12."""
    one, other = filled(tmp_path / "last", 1), filled(tmp_path / "last", 2)
    assert one.commit(replace=False)
    assert not other.commit(replace=False)
    other.abandon()
    assert number_of(tmp_path / "last") == 1
    third, fourth = filled(tmp_path / "last", 3), filled(tmp_path / "last", 4)
    assert fourth.commit()
    assert third.commit()
    assert number_of(tmp_path / "last") == 3
    assert os.listdir(tmp_path) == ["last"]


def test_two_that_write_all_the_time_do_each_other_no_harm(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def run(number: int) -> None:
        for _ in range(40):
            try:
                refusal(partial(save, tmp_path / "last", number))
            except Exception as error:  # noqa: BLE001 - the test looks at them all
                errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    recover(tmp_path / "last")
    assert number_of(tmp_path / "last") in (1, 2)
    collect(tmp_path)
    assert os.listdir(tmp_path) == ["last"]


def test_only_a_whole_file_that_is_no_link_itself_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "old", 1)
    source = tmp_path / "old" / "words.txt"
    digest = read_manifest(tmp_path / "old").files["words.txt"]
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "short").write_bytes(b"n")
    stage = StagedCheckpoint(tmp_path / "new")
    for other in ("link", "short", "nothing", "old"):
        assert not stage.link("words.txt", tmp_path / other, digest)
    assert stage.files == {}
    assert stage.link("words.txt", source, digest)
    assert (stage.path / "words.txt").samefile(source)
    monkeypatch.setattr(os, "link", Failing(0, errno.EPERM).rename)  # as on a file system without links
    assert not stage.link("again.txt", source, digest)
    stage.abandon()


def test_a_manifest_that_could_not_be_read_is_not_committed(tmp_path: Path) -> None:
    stage = StagedCheckpoint(tmp_path / "last")
    items: Any = {"count": 3}
    with pytest.raises(CheckpointError, match=r"\['count'\] of its items are not mappings"):
        stage.seal(Manifest({}, stage.files, items))
    stage.abandon()


ODD: dict[str, Callable[[Path], Any]] = {
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "pipe": os.mkfifo,
    "name": lambda path: path.with_name("odd\n").touch(),
}


@pytest.mark.parametrize("kind", ODD.values(), ids=ODD)
def test_a_hook_that_makes_no_file_is_told(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    stage = StagedCheckpoint(tmp_path / "last")
    kind(stage.path / "odd")
    with pytest.raises(CheckpointError, match="odd"):
        stage.adopt()
    stage.abandon()
    assert os.listdir(tmp_path) == []


def app(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text('{"name": "a web app"}')
    (path / "app.js").write_text("x")


def folder_of_others(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("x")


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "a file": lambda path: path.write_text("mine"),
    "a link to a folder": lambda path: path.symlink_to(path.parent),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder with a file": folder_of_others,
    "a web app": app,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path, name: str) -> None:
    FOREIGN[name](tmp_path / "last")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/last"):
        save(tmp_path / "last", 1)
    with pytest.raises(CheckpointError):
        require_replaceable(tmp_path / "last")
    assert contents(tmp_path) == before


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    save(tmp_path / "last", 1)
    assert number_of(tmp_path / "last") == 1


@pytest.mark.parametrize("name", ["with space ", "ü\n", "-rf", "a" * 228, "[*]", ".hidden", "$HOME"], ids=ascii)
def test_any_name_of_a_folder_will_do(tmp_path: Path, name: str) -> None:
    """Fault 38."""
    save(tmp_path / name, 1)
    save(tmp_path / name, 2)
    assert number_of(tmp_path / name) == 2
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o077, 0o600, 0o700), (0o022, 0o644, 0o755)])
def test_they_may_read_it_whom_the_umask_allows(tmp_path: Path, mask: int, file: int, folder: int) -> None:
    before = os.umask(mask)
    try:
        save(tmp_path / "last", 1)
    finally:
        os.umask(before)
    for path in ((tmp_path / "last"), *(tmp_path / "last").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (folder if path.is_dir() else file)
