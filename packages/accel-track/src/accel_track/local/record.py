"""The record of one run in its folder, and its rewinding."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, final

from accel_track.local.image_file import write_image
from accel_track.local.lines import LineFile
from accel_track.local.record_lock import lock
from accel_track.values import flat, plain

METRICS, MEDIA, CONFIG, STORY = "metrics.jsonl", "media.jsonl", "config.json", "run.json"


@final
class RunRecord:
    """Writes the record of a run; one process at a time.

    Calls are numbered. A step that is None is the step after the largest so far. Steps may repeat and come in any
    order: readers sort by step, and the newest value counts.

    Raises: OSError if the folder cannot be written, or if another process writes this record.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = lock(folder)
        self._metrics, self._media = LineFile(folder / METRICS), LineFile(folder / MEDIA)
        #: the number of the next call, and the largest step so far
        self.calls, self.last_step = 0, -1
        story = folder / STORY
        self.story: dict[str, Any] = json.loads(story.read_text()) if story.exists() else {}

    def tell(self, **facts: Any) -> None:
        """Adds facts to the story of the run."""
        self.story |= plain(facts)
        _write(self.folder / STORY, self.story)

    def tell_event(self, kind: str, details: Mapping[str, Any]) -> None:
        """Adds an event, with its time and the largest step so far, to the list of its kind."""
        events = self.story.get(f"{kind.replace(' ', '_')}s", [])
        at = {"step": max(self.last_step, 0), "time": time.time()}
        self.tell(**{f"{kind.replace(' ', '_')}s": [*events, at | dict(details)]})

    def configure(self, values: Mapping[str, Any]) -> None:
        """Writes the configuration."""
        _write(self.folder / CONFIG, plain(values))

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Writes the values of a step, as a line."""
        metrics = {name: plain(value) for name, value in flat(values)}
        self._metrics.add(self._entry(step) | {"metrics": metrics})

    def log_table(self, name: str, columns: list[Any], rows: list[list[Any]], step: int | None) -> None:
        """Writes a table, as a line."""
        self._media.add(self._entry(step) | {"table": name, "columns": plain(columns), "rows": plain(rows)})

    def log_images(self, images: Mapping[str, Any], step: int | None) -> None:
        """Writes images as files, and a line that names them."""
        entry, files = self._entry(step), dict[str, list[str]]()
        for number, (name, listed) in enumerate(images.items()):
            for place, image in enumerate(listed):
                # different names may be the same safe name
                path = self.folder / "images" / f"{entry['n']:06d}-{number}-{safe_name(name)}-{place}.png"
                path.parent.mkdir(exist_ok=True)
                write_image(path, image)
                files.setdefault(name, []).append(path.name)
        self._media.add(entry | {"images": files})

    def rewind(self, calls: int, last_step: int) -> None:
        """Gives up the calls from number `calls` on, which will come again: they are moved to files `.given-up-N`."""
        ending = next(end for end in map(".given-up-{}".format, count(1)) if not any(self.folder.glob(f"*{end}")))
        self._metrics.keep_until(calls, ending)
        images, aside = self.folder / "images", self.folder / f"images{ending}"
        for entry in self._media.keep_until(calls, ending):
            for file in (file for files in entry.get("images", {}).values() for file in files):
                aside.mkdir(exist_ok=True)
                (images / file).rename(aside / file)
        self.calls, self.last_step = calls, last_step
        for kind in ("checkpoints", "loaded_checkpoints", "skipped_steps"):
            events = self.story.get(kind, [])
            self.story |= {kind: [event for event in events if event["step"] <= max(last_step, 0)]} if events else {}

    def discard(self) -> None:
        """Removes a record in which nothing was logged."""
        self.close()
        if self.calls == 0:
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets another process write this record."""
        self._metrics.close()
        self._media.close()
        os.close(self._lock)

    def _entry(self, step: int | None) -> dict[str, Any]:
        number, self.calls = self.calls, self.calls + 1
        step = self.last_step + 1 if step is None else int(step)
        self.last_step = max(step, self.last_step)
        return {"n": number, "step": step, "time": time.time()}


def new_folder(parent: Path, project: str) -> Path:
    """The folder of a new run of a project."""
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return parent / safe_name(project) / f"{started}-{secrets.token_hex(2)}"


def safe_name(name: str) -> str:
    """The name, with anything replaced that may mean something in a path."""
    return re.sub(r"[^\w.=+-]+", "_", name).strip(".")[:80] or "_"


def _write(path: Path, content: Any) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(aside, path)
