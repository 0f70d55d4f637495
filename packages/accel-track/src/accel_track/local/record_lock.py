"""A lock that gives a record one writer at a time, among all processes of the machine."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from accel_track.local.damage import put_aside

LOCK = "lock"
#: the folders whose records this process writes: a lock of a process does not stop the process itself
_HELD = set[Path]()
#: Linux's `struct flock`: the kind, from where, the first byte, how many, the process that has it
_FLOCK = "hhqqi4x"


def lock(folder: Path) -> int:
    """Take the lock of a record, until `unlock` or the end of the process, however it ends.

    Returns:
        The file descriptor for `unlock`.

    Raises:
        OSError: The record has a writer, or the folder cannot be written.
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
    """Let another writer have the record.

    Args:
        folder: Folder of the record.
        descriptor: What `lock` returned.
    """
    os.close(descriptor)
    _HELD.discard(folder.resolve())


def is_locked(folder: Path) -> bool:
    """Return whether a record has a writer, without the need of a right to write."""
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
