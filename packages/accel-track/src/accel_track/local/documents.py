"""Read and write the documents of a record: files of JSON that are written whole, and may be damaged all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_track.local.damage import put_aside
from accel_track.local.lines import is_count

#: the lists of events in the metadata of a run
EVENTS = frozenset({"restarts", "checkpoints", "loaded_checkpoints", "skipped_steps"})


def read_document(path: Path) -> Any:
    """Return what a file of JSON holds.

    Raises:
        ValueError: It cannot be read, or is damaged; the message is the reason.
    """
    try:
        return json.loads(path.read_bytes().decode())
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_metadata(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata of a run, and the names of its facts that are damaged, which are left out.

    Raises:
        ValueError: It cannot be read, or is damaged as a whole; the message is the reason.
    """
    found = read_document(path)
    if not isinstance(found, dict):
        raise ValueError(f"it tells of no run: {found!r:.100}")
    damaged = [name for name, value in found.items() if not _fits(name, value)]
    return {name: value for name, value in found.items() if name not in damaged}, damaged


def write_document(path: Path, content: Any) -> None:
    """Replace a file of JSON, and put a folder in its place aside.

    Raises:
        OSError: It cannot be written. The file is as before.
    """
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    if path.is_dir():
        put_aside(path, "it is a folder")
    os.replace(aside, path)


def _fits(name: str, value: Any) -> bool:
    """Return whether a fact has the type that readers expect."""
    if name in EVENTS:
        return isinstance(value, list) and all(isinstance(one, Mapping) and is_count(one.get("step")) for one in value)
    if name == "git":
        return value is None or (isinstance(value, dict) and {"commit", "changed"} <= set(value))
    if name == "command":
        return isinstance(value, list) and all(isinstance(word, str) for word in value)
    if name == "lines":
        return isinstance(value, dict) and all(map(is_count, value.values()))
    return name != "versions" or isinstance(value, dict)
