"""Read the records of runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_state.errors import CannotRun
from accel_track.local import (
    CONFIG,
    MEDIA,
    METADATA,
    METRICS,
    as_number,
    entries,
    flatten,
    is_locked,
    read_document,
    read_metadata,
    tell_damage,
)

logger = logging.getLogger("accel")
#: the values of a metric by their steps, which grow
Series = dict[int, float]


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run. A warning names each damaged file, whose readable part is used.

    Args:
        folder: Folder of the record.
        metadata: Facts of the run, as run.json has them, such as "command", "started" and "checkpoints".
    """

    folder: Path
    metadata: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the run, as project/run."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of the configuration by path: {"model": {"layers": 12}} has model/layers."""
        path = self.folder / CONFIG
        config: dict[str, Any] = {}
        try:
            config = read_document(path) if path.exists() else config
        except ValueError as error:
            tell_damage(path, f"{error}")
        return dict(flatten(config if isinstance(config, dict) else {"config": config}))

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines that were logged, in the order of steps, and within a step in the order of calls."""
        return sorted(self._entries(METRICS), key=lambda entry: entry["step"])

    @cached_property
    def media(self) -> int:
        """The number of tables and of groups of images that were logged."""
        return len(list(self._entries(MEDIA)))

    @cached_property
    def series(self) -> dict[str, Series]:
        """The numbers of each metric by step. If a step has several, the newest counts."""
        series: dict[str, Series] = {}
        for line in self.lines:
            for name, value in line.get("metrics", {}).items():
                if (number := as_number(value)) is not None:
                    series.setdefault(name, {})[line["step"]] = number
        return series

    def _entries(self, name: str) -> Iterator[dict[str, Any]]:
        return entries(self.folder / name, self.metadata.get("lines", {}).get(name, 0))

    @property
    def state(self) -> str:
        """The state of the run: "running", "finished", "interrupted", or "unknown" if its metadata are lost."""
        state = str(self.metadata.get("state", "unknown"))
        return "interrupted" if state == "running" and not is_locked(self.folder) else state


def find_runs(parent: Path) -> list[RecordedRun]:
    """Find the runs below a folder, as parent/project/run or parent/run.

    Args:
        parent: The folder.

    Returns:
        The runs in the order of their names, which begin with the time of the start.
    """
    # a record whose metadata were lost is found by its media
    folders = {
        path.parent for name in (METADATA, MEDIA) for depth in ("*", "*/*") for path in parent.glob(f"{depth}/{name}")
    }
    ordered = sorted(folders, key=lambda folder: (folder.name, folder))
    return [run for folder in ordered if (run := _read(folder)) is not None]


def _read(folder: Path) -> RecordedRun | None:
    """Return the run of a folder, or None, with a warning, if its run.json tells of no run."""
    path = folder / METADATA
    metadata: dict[str, Any] = {}
    damaged: list[str] = []
    try:
        metadata, damaged = read_metadata(path)
    except ValueError as error:
        if not os.path.lexists(folder / MEDIA):
            logger.warning("%s is left out, as it tells of no run: %s", path, error)
            return None
        tell_damage(path, f"{error}")
    if damaged:
        tell_damage(path, f"of its facts these cannot be read: {', '.join(damaged)}")
    return RecordedRun(folder.resolve(), metadata)


def find_run(word: str, parent: Path) -> RecordedRun:
    """Find the run that a word means.

    Args:
        word: The folder of a run, the beginning of its name, or "last".
        parent: Folder with the runs.

    Raises:
        CannotRun: The word means no run, or several; the message lists the runs.
    """
    own = Path(word)
    if any(os.path.lexists(own / name) for name in (METADATA, MEDIA)) and (run := _read(own)) is not None:
        return run
    runs = find_runs(parent)
    if word == "last" and runs:
        return runs[-1]
    meant = [run for run in runs if run.folder.name.startswith(word) or run.name.startswith(word)]
    if len(meant) == 1:
        return meant[0]
    known = "\n  ".join(run.name for run in (meant or runs)[-10:]) or "none"
    what = "several runs are meant by" if meant else "no run is meant by"
    raise CannotRun("accel runs", [f"{what} {word!r}; give the folder or the name of a run. In {parent}:\n  {known}"])
