"""Reads the records of runs."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_state.errors import CannotRun
from accel_track.local import CONFIG, METRICS, STORY, as_number, entries, flat, is_locked

logger = logging.getLogger("accel")
#: the values of a metric by their steps, which grow
Series = dict[int, float]


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run in its folder."""

    folder: Path
    story: dict[str, Any]

    @property
    def name(self) -> str:
        """The project and the name of the run."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The values of the configuration by their paths."""
        path = self.folder / CONFIG
        found = json.loads(path.read_text()) if path.exists() else {}
        return dict(flat(found if isinstance(found, dict) else {"config": found}))

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """What was logged, in the order of steps; of one step, in the order of the calls."""
        return sorted(entries(self.folder / METRICS), key=lambda entry: entry["step"])

    @cached_property
    def series(self) -> dict[str, Series]:
        """The numbers of each metric by step; the newest of a step counts."""
        found: dict[str, Series] = {}
        for line in self.lines:
            for name, value in line["metrics"].items():
                if (number := as_number(value)) is not None:
                    found.setdefault(name, {})[line["step"]] = number
        return found

    @property
    def state(self) -> str:
        """Whether the run goes on, has finished, or was interrupted."""
        told = str(self.story.get("state", "unknown"))
        return "interrupted" if told == "running" and not is_locked(self.folder) else told


def find_runs(parent: Path) -> list[RecordedRun]:
    """The runs below a folder, the oldest first: parent/project/run, or parent/run."""
    paths = sorted([*parent.glob(f"*/{STORY}"), *parent.glob(f"*/*/{STORY}")], key=lambda path: path.parent.name)
    return [run for path in paths if (run := _read(path)) is not None]


def _read(path: Path) -> RecordedRun | None:
    """The run whose story the file tells; None, and a warning, if the file is of somebody else."""
    try:
        story = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        story = error
    if isinstance(story, dict):
        return RecordedRun(path.parent.resolve(), story)
    logger.warning("%s is left out, as it tells of no run: %.100r", path, story)
    return None


def find_run(word: str, parent: Path) -> RecordedRun:
    """The run that a word means: its folder, the beginning of its name, or "last".

    Raises: CannotRun with what there is, if the word means no run or several.
    """
    if (path := Path(word) / STORY).is_file() and (own := _read(path)) is not None:
        return own
    runs = find_runs(parent)
    if word == "last" and runs:
        return runs[-1]
    meant = [run for run in runs if run.folder.name.startswith(word) or run.name.startswith(word)]
    if len(meant) == 1:
        return meant[0]
    known = "\n  ".join(run.name for run in (meant or runs)[-10:]) or "none"
    what = "several runs are meant by" if meant else "no run is meant by"
    raise CannotRun("accel runs", [f"{what} {word!r}; give the folder or the name of a run. In {parent}:\n  {known}"])
