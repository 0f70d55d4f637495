"""One process writes a record at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = "lock"


def lock(folder: Path) -> int:
    """The file descriptor whose lock is held until it is closed, or the process ends, in whatever way.

    Raises: OSError if another process holds it, or if the folder cannot be written.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    if not _taken(descriptor):
        return descriptor
    os.close(descriptor)
    raise OSError(f"another process writes the record {folder}: end that process, or log into another folder")


def is_locked(folder: Path) -> bool:
    """Whether another process writes the record; not to be asked by a process that writes it itself."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Whether another process has the lock; this process has it otherwise."""
    try:
        # of this process alone: a flock would also be held by loader workers that are forked meanwhile
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
