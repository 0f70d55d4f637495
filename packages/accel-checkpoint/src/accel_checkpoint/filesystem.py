"""Make every change of this package on a disk, so that a crash can only cut off what happens here, in this order."""

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
    """The size of a file and its XXH3 hash of 128 bits, which shows accidents and no forgeries.

    Units:
        Bytes.
    """

    size: int
    xxh3: str

    @classmethod
    def of(cls, content: Iterable[memoryview | bytes]) -> FileDigest:
        """Return the digest of a file with this content.

        Args:
            content: The bytes of the file, piece by piece.
        """
        hasher, size = xxh3_128(), 0
        for piece in content:
            hasher.update(piece)
            size += len(piece)
        return cls(size, hasher.hexdigest())


class Filesystem:
    """A disk, on which files are made, written, renamed and removed.

    A test replaces it to fail, or to cut a save off.
    """

    def make_folder(self, path: Path) -> None:
        """Make a new folder and its missing parents."""
        for parent in reversed([parent for parent in path.parents if not parent.is_dir()]):
            parent.mkdir(exist_ok=True)
            self.flush_folder(parent.parent)  # a power failure must not lose the way to the new folder
        path.mkdir()

    @contextmanager
    def create(self, path: Path) -> Iterator[BinaryIO]:
        """Open a new file for writing, which is on the disk when the block ends."""
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def write(self, path: Path, content: Iterable[memoryview | bytes]) -> FileDigest:
        """Write a new file, which is on the disk when this returns.

        Args:
            path: The file.
            content: Its bytes, piece by piece.

        Returns:
            The digest of the file.
        """
        with self.create(path) as file:
            return FileDigest.of(_write_each(file.fileno(), content))

    def link(self, path: Path, source: Path) -> bool:
        """Give the file `source` a second name, `path`.

        Returns:
            False if the file system cannot.
        """
        try:
            os.link(source, path)
        except OSError:
            return False
        return True

    def flush_file(self, path: Path) -> None:
        """Wait until the content of a file is on the disk."""
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def flush_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, to: Path) -> None:
        """Rename a file or folder in one step.

        A file replaces a file, and a folder replaces an empty folder.
        """
        path.replace(to)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its content. Another process may remove the same folder."""
        while path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
        path.unlink(missing_ok=True)


def identity_of(folder: Path) -> tuple[str, str]:
    """Return the mount namespace of this process, and what tells a folder from those of other namespaces at its path.

    The latter changes when a network disk is mounted again.
    """
    # where the system is not Linux, no such link leads to another name
    return Path("/proc/self/ns/mnt").resolve().name, "{}-{}".format(*os.stat(folder)[1:3])


def has_content(folder: Path) -> bool:
    """Return whether a folder exists and is not empty."""
    try:
        return any(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def file_sizes(folder: Path, inside: str = "") -> dict[str, int]:
    """Return the size of each regular file in a folder and its folders, by its path from there.

    One scan costs less than a look at each file: a network disk answers for many files at once.

    Args:
        folder: The folder.
        inside: Path of a folder in it, with a slash at its end, to begin with.

    Raises:
        OSError: It cannot be read.
    """
    sizes: dict[str, int] = {}
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with suppress(PermissionError):  # of somebody else, and no part of what was written here
                    sizes |= file_sizes(folder, f"{inside}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another job removes it
                    sizes[f"{inside}{entry.name}"] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _write_each(descriptor: int, content: Iterable[memoryview | bytes]) -> Iterator[memoryview | bytes]:
    for piece in content:
        rest = memoryview(piece)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
        yield piece


def explain(error: OSError, folder: Path) -> str:
    """Return words for an error of a disk, with the free bytes of the disk.

    Args:
        error: The error.
        folder: Folder on the disk, which need not exist.
    """
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
