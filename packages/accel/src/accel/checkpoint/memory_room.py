"""Count the bytes that checkpoints need in a folder, which may be memory, and those that are free."""

from __future__ import annotations

import shutil
from pathlib import Path

from accel_big.maps.memory import free_of_cpu
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.inspect import in_words

MEMORY = Path("/dev/shm")


def room_for(folder: Path, size: int, count: int, *, root: Path = Path("/")) -> tuple[str, bool]:
    """Return what checkpoints need and what is free, in words, and whether that is too little.

    Args:
        folder: The folder, in which there may be checkpoints already.
        size: Bytes of one, of which the processes need as many for their copy.
        count: How many there are at most.
        root: Folder that has the files of the system.
    """
    free = shutil.disk_usage(folder).free
    if MEMORY in folder.parents:
        free = max(0, min(free, free_of_cpu(root) - size))
    words = (
        f"checkpoints in memory have {in_words(size)} each on this machine, and need room for {count} in {folder},"
        f" where {in_words(free)} are free"
    )
    return words, count * size - sum(file_sizes(folder).values()) > free
