"""The folder of a checkpoint: written aside, and there when it is whole."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import final

import torch
from xxhash import xxh3_128

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import MANIFEST, Manifest
from accel_checkpoint.medium import Medium, Written, explained
from accel_checkpoint.tensorfile import pieces
from accel_checkpoint.verify import damage, is_whole

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
        self.path = self.target.parent / f".{self.target.name}.{secrets.token_hex(4)}.saving"
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
            self.medium.flush_folder(self.path)

    def commit(self, *, replace: bool = True) -> bool:
        """Gives it its name; False, without `replace`, where something has that name meanwhile."""
        with self._explained():
            old: Path | None = None
            if _has_content(self.target):
                if not replace:
                    return False
                old = self.target.parent / f".{self.target.name}.{secrets.token_hex(4)}.old"
                self.medium.rename(self.target, old)
                self.medium.flush_folder(self.target.parent)
            try:
                self.medium.rename(self.path, self.target)
            except OSError:
                if old is not None:
                    self.medium.rename(old, self.target)
                if not replace and _has_content(self.target):
                    return False
                raise
            self.medium.flush_folder(self.target.parent)
            self._unlock()
            if old is not None:
                self._keep_others_files(old)
                self.medium.remove(old)
        return True

    def abandon(self) -> None:
        """Removes what was written."""
        self._unlock()
        if self.path.exists():
            self.medium.remove(self.path)

    def _keep_others_files(self, old: Path) -> None:
        """What somebody else has put beside the files of the checkpoint stays beside those of the new one."""
        known = set(_names_of(old))
        for path in old.iterdir():
            if path.name not in known and not (self.target / path.name).exists():
                self.medium.rename(path, self.target / path.name)

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
    if _has_content(target) and not (target / MANIFEST).is_file():
        some = ", ".join(sorted(one.name for one in target.iterdir())[:5])
        raise CheckpointError(
            f"{target} has files that are of no checkpoint of accel ({some}): give save_state another folder"
        )


def recover(target: Path, medium: Medium | None = None) -> bool:
    """Gives a checkpoint its name back whose save was cut off between two names; whether there was one."""
    if _has_content(target) or not target.parent.is_dir():
        return False
    for path in sorted(target.parent.iterdir()):
        match = OLD.fullmatch(path.name)
        if match is not None and match[1] == target.name and is_whole(path):
            (medium or Medium()).rename(path, target)
            return True
    return False


def collect(parent: Path, medium: Medium | None = None) -> list[str]:
    """Removes what saves that were cut off have left in a folder; the names of what was removed."""
    removed = []
    for path in sorted(parent.iterdir()) if parent.is_dir() else []:
        stage, old = STAGE.fullmatch(path.name), OLD.fullmatch(path.name)
        if path.is_symlink() or not path.is_dir() or not (stage or old):
            continue
        if stage is not None and not _is_left(path):
            continue  # its writer lives
        if old is not None and (recover(parent / old[1], medium) or not _has_content(parent / old[1])):
            continue
        (medium or Medium()).remove(path)
        removed.append(path.name)
    return removed


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


def _has_content(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _names_of(folder: Path) -> list[str]:
    from accel_checkpoint.manifest import read_manifest

    try:
        files = read_manifest(folder).files
    except CheckpointError:
        return [one.name for one in folder.iterdir()]
    return [MANIFEST, *{name.partition("/")[0] for name in files}]


def described(content: Iterable[memoryview | bytes]) -> Written:
    """What a file of this content would be written as."""
    digest, size = xxh3_128(), 0
    for piece in content:
        digest.update(piece)
        size += len(piece)
    return Written(size, digest.hexdigest())


def _pieces_of(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            yield piece


def require_whole(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> None:
    """Raises: CheckpointError that lists every file that is not what was written."""
    found = damage(folder, manifest, names)
    if found:
        raise CheckpointError(f"the checkpoint {folder} is damaged:\n  " + "\n  ".join(found))
