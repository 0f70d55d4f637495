"""Checkpoints that are numbered: which is the newest, what the next is called, and which may go."""

from __future__ import annotations

import re
from pathlib import Path

from accel_checkpoint.folder import collect, recover
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
    return max((number for number, _ in numbered(folder)), default=-1) + 1


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


def tidy(folder: Path, medium: Medium | None = None) -> None:
    """Removes what saves that were cut off have left, and gives a checkpoint its name back that had lost it."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.old", path.name)
        if match is not None:
            recover(folder / match[1], medium)
    collect(folder, medium)
