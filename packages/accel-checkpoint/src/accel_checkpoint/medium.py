"""Every effect on the disk that a checkpoint has: what a crash can tear is what happens here, in this order."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128

from accel_checkpoint.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Written:
    """A file as it was written: its size, and its XXH3 hash of 128 bits, which tells accidents, not forgeries."""

    size: int
    xxh3: str


class Tally:
    """What a file would be that has these pieces."""

    def __init__(self) -> None:
        self._digest, self._size = xxh3_128(), 0

    def add(self, piece: memoryview | bytes) -> None:
        """Goes on with this piece."""
        self._digest.update(piece)
        self._size += len(piece)

    def sum(self) -> Written:
        """The file of the pieces so far."""
        return Written(self._size, self._digest.hexdigest())


class Medium:
    """A disk."""

    def make_folder(self, path: Path) -> None:
        """Makes a folder that is not there yet, and those above it."""
        for above in reversed([one for one in path.parents if not one.is_dir()]):
            above.mkdir(exist_ok=True)
            self.flush_folder(above.parent)  # what comes into it is to be found
        path.mkdir()

    def write(self, path: Path, content: Iterable[memoryview | bytes]) -> Written:
        """Writes a new file, on the disk when this returns; hashes it beside."""
        tally = Tally()
        with path.open("xb", buffering=0) as file:
            for piece in content:
                tally.add(piece)
                _write_all(file.fileno(), piece)
            os.fsync(file.fileno())
        return tally.sum()

    def link(self, path: Path, source: Path) -> bool:
        """Gives a file a second name; False where the file system has none."""
        try:
            os.link(source, path)
        except OSError:
            return False
        return True

    def flush_file(self, path: Path) -> None:
        """Returns when what was written to a file is on the disk."""
        _flush(path, os.O_RDONLY)

    def flush_folder(self, path: Path) -> None:
        """Returns when the names in a folder are on the disk."""
        _flush(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, path: Path, to: Path) -> None:
        """Gives a file or folder another name, at once and for everybody; an empty folder of that name is replaced."""
        path.rename(to)

    def remove(self, path: Path) -> None:
        """Removes a file, or a folder and what is in it."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write_all(descriptor: int, piece: memoryview | bytes) -> None:
    rest = memoryview(piece)
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def explained(error: OSError, folder: Path) -> CheckpointError:
    """The error of a disk in words: which one, and how much room it has."""
    return CheckpointError(f"no checkpoint could be written to {folder} {_why(error, folder)}")


def not_written(error: OSError, path: Path) -> OSError:
    """The same error of a file, in the words that a checkpoint has."""
    return OSError(error.errno, f"{path} could not be written {_why(error, path.parent)}")


def _why(error: OSError, folder: Path) -> str:
    why = f"{type(error).__name__}: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        limit = "; a limit on the size of files is set: raise it (ulimit -f), or choose a smaller max_shard_size"
        why = f"no room: {error.strerror or error}{limit if error.errno == errno.EFBIG else ''}"
    return f"({why}); {_room(folder)}; what was there before stays"


def _room(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        room = shutil.disk_usage(folder)
    except OSError:
        return "its disk does not answer"
    return f"the disk of {folder} has {room.free:,} of {room.total:,} bytes free"
