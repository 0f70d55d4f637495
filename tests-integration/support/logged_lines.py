"""What a run has logged, from its file."""

from pathlib import Path
from typing import Any

from accel_track.local.lines import entries


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of the one run in a folder of projects."""
    (path,) = folder.glob("*/*/metrics.jsonl")
    return list(entries(path))
