import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from accel_checkpoint import save_object, save_weights
from accel_checkpoint.atomic_write import atomic_write


def text(words: str) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(words.encode())

    return write


def full(file: BinaryIO) -> None:
    file.write(b"half of")
    raise OSError(28, "No space left on device")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_appear_with_their_content(tmp_path: Path) -> None:
    atomic_write({tmp_path / "a": text("one"), tmp_path / "b": text("two")})
    assert contents(tmp_path) == {"a": "one", "b": "two"}


def test_a_failure_in_any_of_them_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    """Rule 14: nothing half-written under its final name, nothing left aside."""
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        atomic_write({tmp_path / "a": text("new"), tmp_path / "b": full, tmp_path / "c": text("never")})
    assert contents(tmp_path) == {"a": "old"}


def test_an_interrupt_leaves_nothing_aside_either(tmp_path: Path) -> None:
    def interrupted(file: BinaryIO) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write({tmp_path / "a": interrupted})
    assert contents(tmp_path) == {}


def test_while_it_is_written_the_file_has_another_name(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(file: BinaryIO) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())

    atomic_write({tmp_path / "model.bin": look})
    (name,) = seen
    assert name.startswith(".model.bin.")
    assert name.endswith(".partial")


def test_everything_is_flushed_before_the_first_name_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def noted(path: Path, target: Path) -> Path:
        happened.append("rename")
        return replace(path, target)

    def flushed(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(Path, "replace", noted)
    monkeypatch.setattr(os, "fsync", flushed)
    atomic_write({tmp_path / "a": text("one"), tmp_path / "b": text("two")})
    assert happened == ["file", "file", "rename", "folder", "rename", "folder"]


def test_what_opens_replaced_files_is_gone_before_the_first_of_them_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "index"):
        (tmp_path / name).write_text("old")
    seen: list[dict[str, str]] = []
    replace = Path.replace

    def looked(path: Path, target: Path) -> Path:
        seen.append({one.name: one.read_text() for one in tmp_path.iterdir() if one.suffix != ".partial"})
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", looked)
    atomic_write({tmp_path / "a": text("new"), tmp_path / "index": text("new")}, remove_first=[tmp_path / "index"])
    assert seen == [{"a": "old"}, {"a": "new"}]
    assert contents(tmp_path) == {"a": "new", "index": "new"}


def test_a_failure_before_all_files_are_whole_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        atomic_write({tmp_path / "a": full, tmp_path / "index": text("new")}, remove_first=[tmp_path / "index"])
    assert contents(tmp_path) == {"index": "old"}


def test_a_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write({tmp_path / "a": text("one")})
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@contextmanager
def small_files() -> Iterator[None]:
    """In this block no file may have more than 2,000 bytes; pytest writes none, which may be one as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("what", ["weights", "object"])
def test_a_file_that_may_not_grow_so_large_is_an_error_of_the_system(what: str, safe: bool, tmp_path: Path) -> None:
    """Feature row S88, rule 14: what to do is said, and nothing half-done is left."""

    def save(numbers: int) -> None:
        tensors = {"a": torch.full((numbers,), float(numbers)), "b": torch.ones(2)}
        if what == "weights":
            save_weights(tensors, tmp_path, safe_serialization=safe)
        else:
            save_object(tensors, tmp_path / "object", safe_serialization=safe)

    save(3)
    (file,) = tmp_path.iterdir()
    before = file.read_bytes()
    words = r"no room: File too large; .* raise it \(ulimit -f\), or .*max_shard"
    with pytest.raises(OSError, match=words) as caught, small_files():
        save(3000)
    assert str(file) in str(caught.value)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]
