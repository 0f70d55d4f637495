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


def copy_newest(source: Path, folder: Path) -> Path | None:
    """Copy the newest whole checkpoint of one folder into another, under the next number there.

    Args:
        source: Folder of the checkpoints to choose from.
        folder: Folder of checkpoints, on any disk.

    Returns:
        The new path, or None if no checkpoint is whole, or the other folder has a checkpoint that is as new.

    Raises:
        CheckpointError: The newest is damaged, or the disk refuses.
    """
    newest, there = newest_whole(source), newest_whole(folder)
    if newest is None:
        return None
    manifest = read_manifest(newest)
    if there is not None and read_manifest(there).moment >= manifest.moment:
        return None
    stage = StagedCheckpoint(checkpoint_path(folder, next_number(folder)))
    named = False
    try:
        for name in manifest.files:
            stage.write(name, read_pieces(newest / name))
        if stage.files != manifest.files:
            raise CheckpointError(f"{newest} is damaged: its content is not what was written")
        stage.seal(manifest)
        named = stage.commit(replace=False)
    finally:
        if not named:
            stage.abandon()
    return stage.target if named else copy_newest(source, folder)  # another job has taken the number meanwhile


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
