"""Every change that this package makes on a disk: a crash can only cut off what happens here, in this order."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_128


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file and its XXH3 hash of 128 bits, which shows accidents and no forgeries. Units: bytes."""

    size: int
    xxh3: str

    @classmethod
    def of(cls, content: Iterable[memoryview | bytes]) -> FileDigest:
        """The digest of a file with this content."""
        hasher = Hasher()
        for piece in content:
            hasher.add(piece)
        return hasher.digest()


class Hasher:
    """Computes the digest of a file, piece by piece."""

    def __init__(self) -> None:
        self._hash, self._size = xxh3_128(), 0

    def add(self, piece: memoryview | bytes) -> None:
        """Adds the next piece of the file."""
        self._hash.update(piece)
        self._size += len(piece)

    def digest(self) -> FileDigest:
        """The digest of all pieces so far."""
        return FileDigest(self._size, self._hash.hexdigest())


class Filesystem:
    """Makes, writes, renames and removes files. A test replaces it to fail, or to cut a save off."""

    def make_folder(self, path: Path) -> None:
        """Makes a new folder and its missing parents."""
        for parent in reversed([parent for parent in path.parents if not parent.is_dir()]):
            parent.mkdir(exist_ok=True)
            self.flush_folder(parent.parent)  # a power failure must not lose the way to the new folder
        path.mkdir()

    @contextmanager
    def create(self, path: Path) -> Iterator[BinaryIO]:
        """Opens a new file for writing; the file is on the disk when the block ends."""
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def write(self, path: Path, content: Iterable[memoryview | bytes]) -> FileDigest:
        """Writes a new file, which is on the disk when this returns, and hashes it on the way."""
        with self.create(path) as file:
            return FileDigest.of(_write_each(file.fileno(), content))

    def link(self, path: Path, source: Path) -> bool:
        """Gives the file `source` a second name; False if the file system cannot."""
        try:
            os.link(source, path)
        except OSError:
            return False
        return True

    def flush_file(self, path: Path) -> None:
        """Returns when the content of a file is on the disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def flush_folder(self, path: Path) -> None:
        """Returns when the names in a folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, to: Path) -> None:
        """Renames a file or folder in one step. A file replaces a file; a folder replaces an empty folder."""
        path.replace(to)

    def remove(self, path: Path) -> None:
        """Removes a file, or a folder with its content. Another process may remove the same folder."""
        while path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
        path.unlink(missing_ok=True)


def has_content(folder: Path) -> bool:
    """Whether a folder exists and is not empty."""
    try:
        return any(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write_each(descriptor: int, content: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    for piece in content:
        rest = memoryview(piece)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        yield piece


def explain(error: OSError, folder: Path) -> str:
    """The error of a disk in words, with the free bytes of the disk."""
    reason = f"{type(error).__name__}: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        limit = "; a limit on the size of files is set: raise it (ulimit -f), or choose a smaller max_shard_size"
        reason = f"no room: {error.strerror or error}{limit if error.errno == errno.EFBIG else ''}"
    return f"({reason}); {_free_bytes(folder)}; what was there before stays"


def _free_bytes(folder: Path) -> str:
    folder = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return "its disk does not answer"
    return f"the disk of {folder} has {usage.free:,} of {usage.total:,} bytes free"
