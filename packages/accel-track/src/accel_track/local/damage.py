"""Warn of damaged files of a record, once for each, and put them aside."""

from __future__ import annotations

import logging
import os
from functools import cache
from itertools import count
from pathlib import Path

logger = logging.getLogger("accel")


@cache
def tell_damage(path: Path, why: str) -> None:
    """Warn of a damaged file, once for each file and reason."""
    logger.warning("%s is damaged: %s", path, why)


def free_path(path: Path) -> Path:
    """Return the path beside a file at which its damaged content can be kept."""
    paths = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(free for free in paths if not os.path.lexists(free))


def put_aside(path: Path, why: str) -> None:
    """Rename a damaged file, whatever it is, and warn of it.

    Raises:
        OSError: It cannot be renamed.
    """
    aside = free_path(path)
    path.rename(aside)
    tell_damage(path, f"{why}; it is kept as {aside.name}")
