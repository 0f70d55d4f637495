"""The folder of a checkpoint: written aside, and there when it is whole."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

import torch
from xxhash import xxh3_64

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import MANIFEST, Manifest, is_checkpoint, is_inside, read_manifest
from accel_checkpoint.medium import Medium, Tally, Written, explained
from accel_checkpoint.tensorfile import pieces
from accel_checkpoint.verify import damage, is_whole

#: bytes of a name that has an ending after it
LONGEST_STEM = 220
#: what is being written, and what another one has taken the place of
STAGE, OLD = re.compile(r"\.(.+)\.[0-9a-f]{8}\.saving"), re.compile(r"\.(.+)\.[0-9a-f]{8}\.old")


@final
class Stage:
    """A checkpoint that is being written, beside the place where it will be.

    Until `commit` nothing of it is seen under its name; what is there stays as it is, also when the process dies.
    """

    def __init__(self, target: Path, medium: Medium | None = None) -> None:
        self.target = Path(os.path.abspath(target))
        self.medium = medium or Medium()
        self.files: dict[str, Written] = {}
        require_replaceable(self.target)
        self.path = self.target.parent / f".{_stem(self.target.name)}.{secrets.token_hex(4)}.saving"
        self._lock: int | None = None
        with self._explained():
            self.medium.make_folder(self.path)
            self._lock = _locked(self.path)

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes tensors into a safetensors file of that name."""
        self.write(name, pieces(tensors, metadata))

    def write(self, name: str, content: Iterable[memoryview | bytes]) -> None:
        """Writes a file of that name, on the disk when this returns."""
        with self._explained():
            self.files[name] = self.medium.write(self.path / name, content)

    def link(self, name: str, source: Path, written: Written) -> bool:
        """Takes over a file of another checkpoint, which is not to change any more; False where that cannot be."""
        if source.is_symlink() or not source.is_file() or source.stat().st_size != written.size:
            return False
        if self.medium.link(self.path / name, source):
            self.files[name] = written
            return True
        return False

    def adopt(self) -> None:
        """Takes up what others have written into the stage."""
        with self._explained():
            for path in sorted(self.path.rglob("*")):
                name = path.relative_to(self.path).as_posix()
                if not is_inside(name):
                    raise CheckpointError(f"{name!r} cannot be the name of a file of a checkpoint: give it a plain one")
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise CheckpointError(f"{name} of the checkpoint is a link or no regular file: write files into it")
                if path.is_dir():
                    self.medium.flush_folder(path)
                elif name not in self.files:
                    self.medium.flush_file(path)
                    self.files[name] = described(_pieces_of(path))

    def seal(self, manifest: Manifest) -> None:
        """Writes the manifest, which is the last file: all that is missing then is the name."""
        with self._explained():
            self.medium.write(self.path / MANIFEST, [manifest.as_bytes()])
            read_manifest(self.path)  # what cannot be read must not take a name
            self.medium.flush_folder(self.path)

    def commit(self, *, replace: bool = True) -> bool:
        """Gives it its name; False, without `replace`, where something has that name meanwhile.

        Raises: CheckpointError; it says so where the checkpoint is there all the same.
        """
        old: Path | None = None
        with self._explained():
            if has_content(self.target):
                if not replace:
                    return False
                old = self.target.parent / f".{_stem(self.target.name)}.{secrets.token_hex(4)}.old"
                self.medium.rename(self.target, old)
            try:
                self.medium.rename(self.path, self.target)
            except OSError:
                if old is not None:
                    self.medium.rename(old, self.target)
                if not replace and has_content(self.target):
                    return False
                raise
        self._unlock()
        try:
            self.medium.flush_folder(self.target.parent)
            if old is not None:
                give_way(old, self.target, self.medium)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self.target} is there, but its disk may not keep it ({error}); look at the disk"
            ) from error
        return True

    def abandon(self) -> None:
        """Removes what was written, as far as the disk allows."""
        self._unlock()
        with suppress(OSError):
            if self.path.exists():
                self.medium.remove(self.path)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explained(error, self.target) from error


def require_replaceable(target: Path) -> None:
    """Raises: CheckpointError where a checkpoint would take the place of what is none."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is a file or a link: give save_state the path of a folder")
    if has_content(target) and not is_checkpoint(target):
        with suppress(FileNotFoundError):
            some = ", ".join(sorted(one.name for one in target.iterdir())[:5])
            raise CheckpointError(
                f"{target} has files that are of no checkpoint of accel ({some}): give save_state another folder"
            )


def give_way(old: Path, target: Path, medium: Medium) -> None:
    """Removes a checkpoint of which another has taken the name, when what others had put into it is in the new one."""
    known = {MANIFEST, *_files_of(old)}
    others = [path for path in sorted(old.rglob("*")) if path.is_symlink() or not path.is_dir()]
    for path in others:
        name = path.relative_to(old)
        if name.as_posix() not in known and not os.path.lexists(target / name):
            if not (target / name).parent.is_dir():
                medium.make_folder((target / name).parent)
            medium.rename(path, target / name)
            medium.flush_folder((target / name).parent)
    medium.remove(old)


def recover(target: Path, medium: Medium | None = None) -> bool:
    """Gives a checkpoint its name back whose save was cut off between two names; whether there was one."""
    if has_content(target) or not target.parent.is_dir():
        return False
    for path in reversed(_by_time(target.parent, OLD)):
        match = OLD.fullmatch(path.name)
        if match is not None and match[1] == _stem(target.name) and is_whole(path):
            (medium or Medium()).rename(path, target)
            return True
    return False


def collect(parent: Path, medium: Medium | None = None) -> list[str]:
    """Removes what saves that were cut off have left in a folder; the names of what was removed."""
    medium, removed = medium or Medium(), []
    for path in _by_time(parent, STAGE):
        if _is_left(path):  # otherwise its writer lives
            medium.remove(path)
            removed.append(path.name)
    for path in _by_time(parent, OLD):
        match = OLD.fullmatch(path.name)
        stem = match[1] if match is not None else ""
        target = next((one for one in parent.iterdir() if _stem(one.name) == stem), parent / stem)
        if not recover(target, medium) and has_content(target) and path.exists():
            give_way(path, target, medium)
            removed.append(path.name)
    return removed


def _stem(name: str) -> str:
    """The name with room for an ending."""
    if len(name.encode(errors="surrogateescape")) <= LONGEST_STEM:
        return name
    return f"{name[: LONGEST_STEM // 8]}~{xxh3_64(name.encode(errors='surrogateescape')).hexdigest()}"


def _by_time(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The folders of such names, the oldest first."""
    found = []
    for path in parent.iterdir() if parent.is_dir() else []:
        with suppress(OSError):
            if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _is_left(stage: Path) -> bool:
    lock = _locked(stage)
    if lock is None:
        return False
    os.close(lock)
    return True


def _locked(folder: Path) -> int | None:
    """A descriptor that keeps the folder locked until it is closed, or its process gone; None where that cannot be."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def has_content(folder: Path) -> bool:
    """Whether there is a folder with anything in it."""
    try:
        return any(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _files_of(folder: Path) -> list[str]:
    try:
        return list(read_manifest(folder).files)
    except CheckpointError:
        return []  # then nothing in it is known to be ours


def described(content: Iterable[memoryview | bytes]) -> Written:
    """What a file of this content would be written as."""
    tally = Tally()
    for piece in content:
        tally.add(piece)
    return tally.sum()


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            yield piece


def require_whole(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Raises: CheckpointError that lists every file that is not what was written."""
    found = damage(folder, manifest, names)
    if found:
        raise CheckpointError(f"the checkpoint {folder} is damaged:\n  " + "\n  ".join(found))
