"""Find numbered checkpoints, number the next, and remove the oldest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import lock_folder
from accel_checkpoint.recovery import discard
from accel_checkpoint.verify import is_whole

_NAME = re.compile(r"checkpoint_(\d+)")


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """List the number and path of each folder called checkpoint_<number>, whole or not, the oldest first."""
    return sorted((number, path) for number, path in _numbered(folder) if path.is_dir())


def next_number(folder: Path) -> int:
    """Return the highest number in the folder plus 1, or 0 in an empty folder.

    A checkpoint counts if it is whole or not."""
    return max((number for number, _ in _numbered(folder)), default=-1) + 1


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            yield int(match[1]), path


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint with this number."""
    return folder / f"checkpoint_{number}"


def retain(folder: Path, limit: int, filesystem: Filesystem | None = None) -> list[Path]:
    """Remove all whole checkpoints but the newest.

    What another job loads stays until the next call. The newest checkpoint must be on the disk when this is called.

    Args:
        folder: Folder of the checkpoints.
        limit: Number of checkpoints that stay.
        filesystem: Disk to remove from. A test gives another.

    Returns:
        The paths of those that were removed.
    """
    filesystem = filesystem or Filesystem()
    whole = [path for _, path in list_checkpoints(folder) if is_whole(path)]
    removed = []
    for path in whole[: max(0, len(whole) - limit)]:
        with suppress(BlockingIOError, FileNotFoundError), lock_folder(path):
            discard(path, filesystem)
            removed.append(path)
    return removed
