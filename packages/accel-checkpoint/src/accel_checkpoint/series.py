"""Checkpoints that are numbered: which is the newest, what the next is called, and which may go."""

from __future__ import annotations

import re
from pathlib import Path

from accel_checkpoint.medium import Medium
from accel_checkpoint.verify import is_whole

_NUMBERED = re.compile(r"checkpoint_(\d+)")


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """Every folder called checkpoint_<number>, the oldest first; whole or not."""
    found = [(_NUMBERED.fullmatch(one.name), one) for one in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(match[1]), one) for match, one in found if match is not None and one.is_dir())


def committed(folder: Path) -> list[tuple[int, Path]]:
    """Those that are whole."""
    return [(number, one) for number, one in numbered(folder) if is_whole(one)]


def next_number(folder: Path) -> int:
    """One more than any number in the folder, whole or not; 0 in an empty one."""
    names = [_NUMBERED.fullmatch(one.name) for one in folder.iterdir()] if folder.is_dir() else []
    return max((int(match[1]) for match in names if match is not None), default=-1) + 1


def path_of(folder: Path, number: int) -> Path:
    """Where the checkpoint of that number is."""
    return folder / f"checkpoint_{number}"


def retain(folder: Path, limit: int, medium: Medium | None = None) -> list[Path]:
    """Removes all but the newest `limit` whole ones; to be called when the newest is there. What was removed."""
    medium = medium or Medium()
    whole = committed(folder)
    going = [path for _, path in whole[: max(0, len(whole) - limit)]]
    for path in going:
        # under its name it is whole or gone
        aside = path.parent / f".{path.name}.00000000.saving"
        medium.rename(path, aside)
        medium.remove(aside)
    return going
