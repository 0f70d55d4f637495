"""Stages a checkpoint: writes it into a hidden folder, and renames the folder when it is whole."""

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
from accel_checkpoint.filesystem import FileDigest, Filesystem, explain
from accel_checkpoint.manifest import MANIFEST, Manifest, is_checkpoint, is_inside, read_manifest
from accel_checkpoint.tensor_file import serialize
from accel_checkpoint.verify import is_whole, verify

#: the most bytes of a name before an ending
LONGEST_STEM = 220
#: the names of folders that are being written, and of checkpoints that others have replaced
STAGE, OLD = re.compile(r"\.(.+)\.[0-9a-f]{8}\.saving"), re.compile(r"\.(.+)\.[0-9a-f]{8}\.old")


@final
class StagedCheckpoint:
    """A checkpoint that is being written into a hidden folder beside its target.

    Until `commit` the target stays as it is, also if the process dies.
    """

    def __init__(self, target: Path, filesystem: Filesystem | None = None) -> None:
        self.target = Path(os.path.abspath(target))
        self.filesystem = filesystem or Filesystem()
        self.files: dict[str, FileDigest] = {}
        require_replaceable(self.target)
        self.path = self.target.parent / f".{_stem(self.target.name)}.{secrets.token_hex(4)}.saving"
        self._lock: int | None = None
        with self._explained():
            self.filesystem.make_folder(self.path)
            self._lock = _locked(self.path)

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes tensors into a safetensors file, which is on the disk when this returns."""
        self.write(name, serialize(tensors, metadata))

    def write(self, name: str, content: Iterable[memoryview | bytes]) -> None:
        """Writes a file, which is on the disk when this returns."""
        with self._explained():
            self.files[name] = self.filesystem.write(self.path / name, content)

    def link(self, name: str, source: Path, digest: FileDigest) -> bool:
        """Links a file of another checkpoint instead of writing it; False if that is not possible.

        Nothing may change the file later. Its digest is known to the caller.
        """
        if source.is_symlink() or not source.is_file() or source.stat().st_size != digest.size:
            return False
        if self.filesystem.link(self.path / name, source):
            self.files[name] = digest
            return True
        return False

    def adopt(self) -> None:
        """Adds the files that hooks have written into the hidden folder."""
        with self._explained():
            for path in sorted(self.path.rglob("*")):
                name = path.relative_to(self.path).as_posix()
                if not is_inside(name):
                    raise CheckpointError(f"{name!r} cannot be the name of a file of a checkpoint: give it a plain one")
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise CheckpointError(f"{name} of the checkpoint is a link or no regular file: write files into it")
                if path.is_dir():
                    self.filesystem.flush_folder(path)
                elif name not in self.files:
                    self.filesystem.flush_file(path)
                    self.files[name] = FileDigest.of(_read_pieces(path))

    def seal(self, manifest: Manifest) -> None:
        """Writes the manifest as the last file: then only the name is missing."""
        with self._explained():
            self.filesystem.write(self.path / MANIFEST, [manifest.as_bytes()])
            read_manifest(self.path)  # a manifest that cannot be read must not be committed
            self.filesystem.flush_folder(self.path)

    def commit(self, *, replace: bool = True) -> bool:
        """Gives the hidden folder the name of the target. Without `replace` an existing target stays: False.

        Raises: CheckpointError. The message tells if the checkpoint is there in spite of the error.
        """
        old: Path | None = None
        with self._explained():
            if has_content(self.target):
                if not replace:
                    return False
                old = self.target.parent / f".{_stem(self.target.name)}.{secrets.token_hex(4)}.old"
                self.filesystem.rename(self.target, old)
            try:
                self.filesystem.rename(self.path, self.target)
            except OSError:
                if old is not None:
                    self.filesystem.rename(old, self.target)
                if not replace and has_content(self.target):
                    return False
                raise
        self._unlock()
        try:
            self.filesystem.flush_folder(self.target.parent)
            if old is not None:
                remove_replaced(old, self.target, self.filesystem)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self.target} is there, but its disk may not keep it ({error}); look at the disk"
            ) from error
        return True

    def abandon(self) -> None:
        """Removes the hidden folder, as far as the disk allows."""
        self._unlock()
        with suppress(OSError):
            if self.path.exists():
                self.filesystem.remove(self.path)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"no checkpoint could be written to {self.target} {explain(error, self.target)}"
            raise CheckpointError(words) from error


def require_replaceable(target: Path) -> None:
    """Checks that a save to the target would replace nothing but a checkpoint.

    Raises: CheckpointError if the target is a file, a link, or a folder with other files.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is a file or a link: give save_state the path of a folder")
    if has_content(target) and not is_checkpoint(target):
        with suppress(FileNotFoundError):
            names = ", ".join(sorted(path.name for path in target.iterdir())[:5])
            raise CheckpointError(
                f"{target} has files that are of no checkpoint of accel ({names}): give save_state another folder"
            )


def remove_replaced(old: Path, target: Path, filesystem: Filesystem) -> None:
    """Moves the files that users had put into the old checkpoint to the new one, and removes the old one."""
    known = {MANIFEST, *_files_of(old)}
    files = [path for path in sorted(old.rglob("*")) if path.is_symlink() or not path.is_dir()]
    for path in files:
        name = path.relative_to(old)
        if name.as_posix() not in known and not os.path.lexists(target / name):
            if not (target / name).parent.is_dir():
                filesystem.make_folder((target / name).parent)
            filesystem.rename(path, target / name)
            filesystem.flush_folder((target / name).parent)
    filesystem.remove(old)


def recover(target: Path, filesystem: Filesystem | None = None) -> bool:
    """Gives a checkpoint its name back if a save was cut off while it replaced the checkpoint.

    Processes of several machines may call this at the same time. Returns whether there was such a checkpoint.
    """
    if has_content(target) or not target.parent.is_dir():
        return False
    for path in reversed(_by_time(target.parent, OLD)):
        match = OLD.fullmatch(path.name)
        if match is not None and match[1] == _stem(target.name) and is_whole(path):
            try:
                (filesystem or Filesystem()).rename(path, target)
            except OSError:
                if path.exists() and not has_content(target):  # else another process was faster
                    raise
            return True
    return False


def collect(parent: Path, filesystem: Filesystem | None = None) -> list[str]:
    """Removes the hidden folders of saves that were cut off, and returns their names."""
    filesystem, removed = filesystem or Filesystem(), []
    for path in _by_time(parent, STAGE):
        if _is_left(path):  # otherwise its writer lives
            filesystem.remove(path)
            removed.append(path.name)
    for path in _by_time(parent, OLD):
        match = OLD.fullmatch(path.name)
        stem = match[1] if match is not None else ""
        target = next((child for child in parent.iterdir() if _stem(child.name) == stem), parent / stem)
        if not recover(target, filesystem) and has_content(target) and path.exists():
            remove_replaced(path, target, filesystem)
            removed.append(path.name)
    return removed


def _stem(name: str) -> str:
    """The name, shortened if an ending would make it too long."""
    if len(name.encode(errors="surrogateescape")) <= LONGEST_STEM:
        return name
    return f"{name[: LONGEST_STEM // 8]}~{xxh3_64(name.encode(errors='surrogateescape')).hexdigest()}"


def _by_time(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The folders whose names match, the oldest first."""
    folders = []
    for path in parent.iterdir() if parent.is_dir() else []:
        with suppress(OSError):
            if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                folders.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(folders)]


def _is_left(stage: Path) -> bool:
    lock = _locked(stage)
    if lock is None:
        return False
    os.close(lock)
    return True


def _locked(folder: Path) -> int | None:
    """A descriptor that locks the folder until it is closed or its process ends; None if the folder is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def has_content(folder: Path) -> bool:
    """Whether a folder exists and is not empty."""
    try:
        return any(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _files_of(folder: Path) -> list[str]:
    try:
        return list(read_manifest(folder).files)
    except CheckpointError:
        return []  # then no file in it is known to be of the checkpoint


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            yield piece


def require_whole(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Verifies the files of a checkpoint, all or only `names`.

    Raises: CheckpointError that lists every file that differs from the manifest.
    """
    problems = verify(folder, manifest, names).problems
    if problems:
        raise CheckpointError(f"the checkpoint {folder} is damaged:\n  " + "\n  ".join(problems))
