"""Move the newest checkpoint in memory to the disk, when nobody is left to go on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

#: the link of the workers to the checkpoints of the project, beside those in memory
PROJECT = "project"


def rescue(kept: Path, say: Callable[[str], None]) -> bool:
    """Move the newest whole checkpoint of a project in memory to its disk, unless the project has a newer one.

    Args:
        kept: Folder of the checkpoints in memory.
        say: Prints a line.

    Returns:
        False if that could not be done, and what is in memory may be the only copy.
    """
    try:
        from accel_checkpoint.filesystem import identity_of
        from accel_checkpoint.retention import copy_newer, newest_whole

        project = kept.with_name(PROJECT).readlink()
        # a disk that was mounted again has other numbers, and only another container another namespace, too
        if not any(kept.with_name(name).exists() for name in identity_of(project.parent)):
            raise FileNotFoundError(f"{project.parent} is not the project that it was taken for: is its disk there?")
        newest = newest_whole(kept)
        if newest is not None:
            if moved := copy_newer(newest, project):
                say(f"accel: the newest checkpoint in memory was moved to {moved}")
        elif any(kept.iterdir()):
            say(f"accel: the checkpoints of {project} in memory are lost, as none is whole on this machine")
    except Exception as error:  # noqa: BLE001 - whatever fails, the only copy is to stay
        say(
            f"accel: the newest checkpoint in memory could not be moved to its project: {error}; it stays in {kept}"
            " for a day, and each launch on this machine tries again"
        )
        return False
    return True


def in_memory_of(path: Path) -> Iterator[Path]:
    """Yield the checkpoints in memory of a project that is at a path, or whose checkpoints are, the oldest first."""
    from accel_checkpoint.retention import list_checkpoints
    from accel_state.environ import process_environ

    from accel_launch.memory.job_folder import SHARED_MEMORY, job_folders, memory_place

    place = memory_place(process_environ().get("ACCEL_MEMORY_CHECKPOINT_DIR")) or SHARED_MEMORY
    for job in job_folders(place):
        for kept in job.glob("*/checkpoints"):
            with suppress(FileNotFoundError):  # its job ends at this moment
                project = kept.with_name(PROJECT).readlink()
                if path.absolute() in (project, project.parent):
                    yield from (checkpoint for _, checkpoint in list_checkpoints(kept))
