"""A record has one writer at a time, on all processes of the machine."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from accel_track.local.damage import put_aside

LOCK = "lock"
#: the folders whose records this process writes: the locks of a process do not hold it off from its own
_HELD = set[Path]()
#: Linux's `struct flock`: the kind, from where, the first byte, how many, the process that has it
_FLOCK = "hhqqi4x"


def lock(folder: Path) -> int:
    """The file descriptor whose lock is held until `unlock`, or the process ends, in whatever way.

    Raises: OSError if the record has a writer, or if the folder cannot be written.
    """
    if folder.resolve() in _HELD:
        raise OSError(f"another tracker of this process writes the record {folder}: log into another folder")
    if (folder / LOCK).is_dir():
        put_aside(folder / LOCK, "it is a folder")
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # of this process alone: a flock would also be held by loader workers that are forked meanwhile
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OSError(
            f"another process writes the record {folder}: end that process, or log into another folder"
        ) from error
    _HELD.add(folder.resolve())
    return descriptor


def unlock(folder: Path, descriptor: int) -> None:
    """Lets another writer have the record."""
    os.close(descriptor)
    _HELD.discard(folder.resolve())


def is_locked(folder: Path) -> bool:
    """Whether the record has a writer; it is only asked, and needs no right to write."""
    if folder.resolve() in _HELD:  # to open and close the file would give the lock up
        return True
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK)
    except OSError:  # of a folder, say
        return False
    finally:
        os.close(descriptor)
