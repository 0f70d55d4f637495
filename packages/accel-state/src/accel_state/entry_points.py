"""The entry points of installed distributions, read once for each state of the folders on the path."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_METADATA = (".dist-info", ".egg-info", ".egg")


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, as `importlib.metadata.entry_points` finds them.

    The first call reads the metadata of all distributions. So does the next call after a folder with metadata has come
    to `sys.path`, or has changed, as by an installation. Every other call costs one `stat` for each folder of the path.
    """
    return _select(group, _folders_with_metadata())


def _folders_with_metadata() -> tuple[tuple[str, int], ...]:
    folders = []
    for entry in sys.path:
        try:
            path = os.path.abspath(entry)
            changed = os.stat(path).st_mtime_ns
        except OSError:
            continue  # import passes over it too
        if _has_metadata(path, changed):
            folders.append((path, changed))
    return tuple(folders)


@cache
def _has_metadata(path: str, changed: int) -> bool:
    """Tell whether a folder, or an archive, names distributions."""
    try:
        with os.scandir(path) as entries:
            return any(entry.name.endswith(_METADATA) for entry in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return False


@cache
def _select(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(_read(folders).select(group=group))


@cache
def _read(folders: tuple[tuple[str, int], ...]) -> Any:
    from importlib.metadata import entry_points  # half of what importing accel_state would take

    return entry_points()
