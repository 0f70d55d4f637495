"""Count the bytes that checkpoints need in a folder, which may be memory, and those that are free."""

from __future__ import annotations

import shutil
from pathlib import Path

from accel_big.maps.memory import free_of_cpu
from accel_checkpoint import CheckpointError
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.inspect import in_words


def room_for(folder: Path, size: int, needed: int, *, root: Path = Path("/")) -> str:
    """Return what checkpoints need and what is free, in words.

    Args:
        folder: The folder, in which there may be checkpoints already.
        size: Bytes of one, of which the processes need as many for their copy.
        needed: Bytes of all that there are at a time.
        root: Folder that has the files of the system.

    Raises:
        CheckpointError: Too little is free.
    """
    import psutil

    free = shutil.disk_usage(folder).free
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    if next((kinds[mounted] for mounted in (place, *place.parents) if mounted in kinds), "") == "tmpfs":
        free = max(0, min(free, free_of_cpu(root) - size))
    words = (
        f"checkpoints in memory have {in_words(size)} each on this machine, and need {in_words(needed)} in {folder},"
        f" where {in_words(free)} are free"
    )
    if needed - sum(file_sizes(folder).values()) > free:
        raise CheckpointError(
            f"{words}: name a folder of a local disk, --memory_checkpoint_dir FOLDER, or leave them out"
        )
    return words
