"""Remove what saves that were cut off left behind, and give checkpoints their names back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import Filesystem, has_content
from accel_checkpoint.hidden_folder import HiddenFolder, claim, hidden_path, list_hidden_folders
from accel_checkpoint.manifest import MANIFEST, read_manifest
from accel_checkpoint.verify import is_whole


def recover(target: Path, filesystem: Filesystem | None = None) -> bool:
    """Give a checkpoint its name back if a save was cut off while it replaced the checkpoint.

    Processes of several machines may call this at the same time.

    Args:
        target: Path of the checkpoint.
        filesystem: Disk to rename on. A test gives another.

    Returns:
        Whether there was such a checkpoint.
    """
    if has_content(target):
        return False
    for folder in reversed(list_hidden_folders(target.parent)):
        if folder.kind == "old" and folder.stem == target.name and is_whole(folder.path):
            try:
                (filesystem or Filesystem()).rename(folder.path, target)
            except OSError:
                if folder.path.exists() and not has_content(target):  # else another process was faster
                    raise
            return True
    return False


def collect(parent: Path, filesystem: Filesystem | None = None, *, keep: Path | None = None) -> list[str]:
    """Remove the hidden folders that no save uses any more.

    What cannot be removed stays, without an error: it is not of the save that cleans up.

    Args:
        parent: Folder of the checkpoints.
        filesystem: Disk to remove from. A test gives another.
        keep: Hidden folder that stays, as the caller is about to use it.

    Returns:
        The names of the removed folders.
    """
    filesystem, removed = filesystem or Filesystem(), []
    for folder in list_hidden_folders(parent):
        if folder.path == keep:  # other processes of the save make and lock it at this moment
            continue
        with suppress(OSError), claim(folder) as abandoned:  # what another job removes, or another user owns, stays
            if abandoned and _clean_up(folder, filesystem):
                removed.append(folder.path.name)
    return removed


def _clean_up(folder: HiddenFolder, filesystem: Filesystem) -> bool:
    """Remove an abandoned folder, or return False if it stays because there is no checkpoint that replaced it."""
    path, target = folder.path, folder.path.with_name(folder.stem)
    if folder.kind == "saving":
        discard(path, filesystem)  # under another name, as its save may make it again
        return True
    if recover(target, filesystem) or not has_content(target):
        return False
    remove_replaced(path, target, filesystem)
    return True


def remove_replaced(old: Path, target: Path, filesystem: Filesystem) -> None:
    """Remove a replaced checkpoint, after its files that users added have moved to the new one.

    Args:
        old: Hidden folder of the replaced checkpoint.
        target: Path of the new checkpoint.
        filesystem: Disk to change.
    """
    names = {MANIFEST}
    with suppress(CheckpointError):  # then no file is known to be of the checkpoint
        names |= read_manifest(old).files.keys()
    with suppress(FileNotFoundError):  # another process has removed it, or given it its name back
        for path in [path for path in sorted(old.rglob("*")) if path.is_symlink() or not path.is_dir()]:
            name = path.relative_to(old)
            if name.as_posix() not in names and not os.path.lexists(target / name):
                if not (target / name).parent.is_dir():
                    filesystem.make_folder((target / name).parent)
                filesystem.rename(path, target / name)
                filesystem.flush_folder((target / name).parent)
        discard(old, filesystem)


def discard(folder: Path, filesystem: Filesystem) -> None:
    """Remove a checkpoint, which is whole under its name until it is gone."""
    hidden = hidden_path(folder.with_name("removed"), "saving")  # its own name may leave no room for an ending
    filesystem.rename(folder, hidden)
    filesystem.remove(hidden)
