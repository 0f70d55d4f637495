"""Find numbered checkpoints, number the next, and remove the oldest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import lock_folder
from accel_checkpoint.manifest import read_manifest
from accel_checkpoint.recovery import discard
from accel_checkpoint.staging import StagedCheckpoint, read_pieces
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


def newest_whole(folder: Path) -> Path | None:
    """Return the whole checkpoint with the highest number, or None."""
    return next((path for _, path in reversed(list_checkpoints(folder)) if is_whole(path)), None)


def copy_newer(checkpoint: Path, folder: Path) -> Path | None:
    """Copy a checkpoint into a folder, under the next number there.

    Args:
        checkpoint: A whole checkpoint.
        folder: Folder of checkpoints, on any disk.

    Returns:
        The new path, or None if the folder has a whole checkpoint that is as new.

    Raises:
        CheckpointError: The checkpoint is damaged, or the disk refuses.
    """
    there, manifest = newest_whole(folder), read_manifest(checkpoint)
    if there is not None and read_manifest(there).moment >= manifest.moment:
        return None
    stage = StagedCheckpoint(checkpoint_path(folder, next_number(folder)))
    try:
        for name in manifest.files:
            stage.write(name, read_pieces(checkpoint / name))
        if stage.files != manifest.files:
            raise CheckpointError(f"{checkpoint} is damaged: its content is not what was written")
        stage.seal(manifest)
        if stage.commit(replace=False):
            return stage.target
    finally:
        stage.abandon()
    return copy_newer(checkpoint, folder)  # another job has taken the number meanwhile


def retain(folder: Path, limit: int, filesystem: Filesystem | None = None, *, whole: bool = True) -> list[Path]:
    """Remove all whole checkpoints but the newest.

    What another job loads stays until the next call. The newest checkpoint must be on the disk when this is called.

    Args:
        folder: Folder of the checkpoints.
        limit: Number of checkpoints that stay.
        filesystem: Disk to remove from. A test gives another.
        whole: Whether others stay, and do not count. Those in memory may lack the parts of other machines.

    Returns:
        The paths of those that were removed.
    """
    filesystem = filesystem or Filesystem()
    counted = [path for _, path in list_checkpoints(folder) if not whole or is_whole(path)]
    removed = []
    for path in counted[: max(0, len(counted) - limit)]:
        with suppress(BlockingIOError, FileNotFoundError), lock_folder(path):
            discard(path, filesystem)
            removed.append(path)
    return removed
