"""Move the newest checkpoint in memory to the disk, when nobody is left to go on from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

#: what the workers note in the folder, and the name of the folder of the checkpoints of the project in it
PROJECT, CHECKPOINTS = "project.json", "checkpoints"


def rescue(folder: Path, say: Callable[[str], None]) -> Path | None:
    """Move the newest whole checkpoint of a project in memory to its disk, and return its new path.

    Nothing is moved if the project has a newer one, or is gone.

    Args:
        folder: Folder of the project in the folder of a launcher.
        say: Prints a line.
    """
    if find_spec("accel_checkpoint") is None:
        return None
    from accel_checkpoint import CheckpointError
    from accel_checkpoint.retention import copy_newest

    project = project_of(folder)
    if project is None or not project.parent.is_dir():
        return None
    try:
        moved = copy_newest(folder / CHECKPOINTS, project)
    except (CheckpointError, OSError) as error:
        say(f"accel: the newest checkpoint in memory could not be moved to {project}: {error}")
        return None
    if moved is not None:
        say(f"accel: the newest checkpoint in memory was moved to {moved}")
    return moved


def project_of(folder: Path) -> Path | None:
    """Return the folder of the checkpoints of the project that a folder in memory belongs to, or None."""
    try:
        return Path(json.loads((folder / PROJECT).read_text(encoding="utf-8"))[CHECKPOINTS])
    except (OSError, ValueError, LookupError, TypeError):
        return None
