"""Read and write the documents of a record: files of JSON that are written whole, and may be damaged all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from accel_track.local.damage import put_aside

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
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a run.

    Raises:
        ValueError: It cannot be read, or is damaged; the message is the reason.
    """
    found = read_document(path)
    if not isinstance(found, dict):
        raise ValueError(f"it tells of no run: {found!r:.100}")
    return found


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
