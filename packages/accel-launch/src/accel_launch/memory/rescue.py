"""Move the newest checkpoint in memory to the disk, when nobody is left to go on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    project, identity = project_of(folder)
    try:
        from accel_checkpoint.filesystem import identity_of
        from accel_checkpoint.retention import copy_newest, list_checkpoints, newest_whole

        if list_checkpoints(folder / CHECKPOINTS) and newest_whole(folder / CHECKPOINTS) is None:
            say(f"accel: the checkpoints of {project} in memory are lost: other machines had parts of each")
            return True
        here = identity_of(project.parent)
        if here[:1] != identity[:1] and here[1:] != identity[1:]:
            raise FileNotFoundError("this is not the project that it was taken for, or the disk is not there")
        moved = copy_newest(folder / CHECKPOINTS, project)
    except Exception as error:  # noqa: BLE001 - whatever fails, the only copy is to stay
        stays = f"it stays in {folder} for a day, and each launch on this machine tries again"
        say(f"accel: the newest checkpoint in memory could not be moved to {project}: {error}; {stays}")
        return False
    if moved is not None:
        say(f"accel: the newest checkpoint in memory was moved to {moved}")
    return True


def project_of(folder: Path) -> tuple[Path, list[str | int]]:
    """Return the folder of the checkpoints of the project that a folder in memory belongs to.

    Returns:
        Its path, or that of this folder if it cannot be read; and what tells the project from others that may be at its
        path, as in another container.
    """
    try:
        about = json.loads((folder / PROJECT).read_text(encoding="utf-8"))
        return Path(about[CHECKPOINTS]), list(about["identity"])
    except (OSError, ValueError, LookupError, TypeError):
        return folder, []


def in_memory_of(path: Path) -> list[Path]:
    """Return the checkpoints in memory of a project that is at a path, or whose checkpoints are, the oldest first."""
    from accel_checkpoint.retention import list_checkpoints
    from accel_state.environ import process_environ

    from accel_launch.cli.options import BY_NAME
    from accel_launch.memory.job_folder import job_folders, memory_place

    place = memory_place(process_environ().get(BY_NAME["memory_checkpoint_dir"].envvar))
    folders = [project for job in job_folders(place) for project in job.glob("*/")] if place is not None else []
    wanted = {path.absolute(), path.absolute() / CHECKPOINTS}
    mine = [folder for folder in folders if project_of(folder)[0] in wanted]
    return [found for folder in mine for _, found in list_checkpoints(folder / CHECKPOINTS)]
