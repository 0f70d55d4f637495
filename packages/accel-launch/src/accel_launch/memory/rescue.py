"""Move the newest checkpoint in memory to the disk, when nobody is left to go on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

#: what the workers note in the folder, and the name of the folder of the checkpoints of the project in it
PROJECT, CHECKPOINTS = "project.json", "checkpoints"


def rescue(folder: Path, say: Callable[[str], None]) -> bool:
    """Move the newest whole checkpoint of a project in memory to its disk, unless the project has a newer one.

    Args:
        folder: Folder of the project in the folder of a launcher.
        say: Prints a line.

    Returns:
        False if that could not be done, and what is in memory may be the only copy.
    """
    project = project_of(folder)
    stays = f"; it stays in {folder}, and each launch on this machine tries again until it is removed"
    try:
        if project is None or not mark_of(folder, project).exists():
            raise FileNotFoundError("this is not the project that it was taken for, or the disk is not there")
        if find_spec("accel_checkpoint") is None:
            raise ModuleNotFoundError("package accel-checkpoint is not installed")
        from accel_checkpoint.retention import copy_newest

        moved = copy_newest(folder / CHECKPOINTS, project)
    except Exception as error:  # noqa: BLE001 - whatever fails, the only copy is to stay
        say(f"accel: the newest checkpoint in memory could not be moved to {project}: {error}{stays}")
        return False
    if moved is not None:
        say(f"accel: the newest checkpoint in memory was moved to {moved}")
    return True


def project_of(folder: Path) -> Path | None:
    """Return the folder of the checkpoints of the project that a folder in memory belongs to, or None."""
    try:
        return Path(json.loads((folder / PROJECT).read_text(encoding="utf-8"))[CHECKPOINTS])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def mark_of(folder: Path, project: Path) -> Path:
    """Return the file by which a project is known as that of a folder in memory: another container may have its path.

    Args:
        folder: Folder of the project in the folder of a launcher.
        project: Folder of the checkpoints of the project.
    """
    return project.parent / f".{folder.parent.name}"


def in_memory_of(path: Path) -> list[Path]:
    """Return the checkpoints in memory of a project that is at a path, or whose checkpoints are, the oldest first."""
    from accel_checkpoint.retention import list_checkpoints
    from accel_state.environ import process_environ

    from accel_launch.cli.options import BY_NAME
    from accel_launch.memory.job_folder import job_folders, memory_place

    place = memory_place(process_environ().get(BY_NAME["memory_checkpoint_dir"].envvar))
    folders = [project for job in job_folders(place) for project in job.glob("*/")] if place is not None else []
    wanted = {path.absolute(), path.absolute() / CHECKPOINTS}
    mine = [folder for folder in folders if project_of(folder) in wanted]
    return [found for folder in mine for _, found in list_checkpoints(folder / CHECKPOINTS)]
