"""Count the bytes that checkpoints need in a folder, which may be memory, and those that are free."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accel_big.maps.memory import free_of_cpu
from accel_checkpoint.filesystem import file_sizes
from accel_state import CannotRun

#: more than any machine has
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class RoomForCheckpoints:
    """The room that checkpoints need in a folder, and the room that there is.

    Args:
        folder: The folder.
        size: Bytes of one.
        count: How many there are at most.
        needed: Bytes that are still needed.
        free: Bytes that are free.
    """

    folder: Path
    size: int
    count: int
    needed: int
    free: int

    @classmethod
    def of(cls, folder: Path, size: int, count: int, *, root: Path = Path("/")) -> RoomForCheckpoints:
        """Return the room in a folder, in which there may be checkpoints already.

        Args:
            folder: The folder.
            size: Bytes of one, of which the processes need as many for their copy.
            count: How many there are at most.
            root: Folder that has the files of the system.
        """
        there = sum(file_sizes(folder).values())
        free = min(shutil.disk_usage(folder).free, _free_memory(folder, root) - size)
        return cls(folder, size, count, max(0, count * size - there), max(0, free))

    @property
    def lacking(self) -> bool:
        """True if there is too little room."""
        return self.needed > self.free

    def __str__(self) -> str:
        return (
            f"checkpoints in memory have {_words(self.size)} each on this machine, and need room for {self.count} in"
            f" {self.folder}, where {_words(self.free)} are free"
        )


def _free_memory(folder: Path, root: Path) -> int:
    """Return the bytes of memory that a folder may take, which are unlimited on a disk."""
    with suppress(OSError, LookupError, ValueError, CannotRun, StopIteration):
        lines = (root / "proc/mounts").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
        kinds = {Path(point): kind for _, point, kind, *_ in map(str.split, filter(None, lines))}
        if next(kinds[path] for path in (folder, *folder.parents) if path in kinds) == "tmpfs":
            return free_of_cpu(root)
    return UNLIMITED


def _words(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
