"""The record of one run in its folder, and its rewinding."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, final

from accel_track.as_image import as_image
from accel_track.local.lines import LineFile
from accel_track.local.record_lock import lock, unlock
from accel_track.values import plain

METRICS, MEDIA, CONFIG, STORY = "metrics.jsonl", "media.jsonl", "config.json", "run.json"


@final
class RunRecord:
    """Writes the record of a run; one writer at a time.

    Calls are numbered. Steps may repeat and come in any order: readers sort by step, and the newest value counts.

    Raises: OSError if the folder cannot be written, or if the record has another writer.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        #: the number of the next call
        self.calls = 0
        with ExitStack() as opened:  # a record of which a file cannot be opened is given up whole
            opened.callback(unlock, folder, lock(folder))
            self._metrics = opened.enter_context(closing(LineFile(folder / METRICS)))
            self._media = opened.enter_context(closing(LineFile(folder / MEDIA)))
            story = folder / STORY
            self.story: dict[str, Any] = json.loads(story.read_text()) if story.exists() else {}
            self._opened = opened.pop_all()

    def tell(self, **facts: Any) -> None:
        """Adds facts to the story of the run."""
        self.story |= plain(facts)
        _write(self.folder / STORY, self.story)

    def tell_event(self, kind: str, step: int, details: Mapping[str, Any]) -> None:
        """Adds an event of a step, with its time, to the list of its kind."""
        name, event = f"{kind.replace(' ', '_')}s", {"step": max(step, 0), "time": time.time(), **details}
        self.tell(**{name: [*self.story.get(name, []), event]})

    def configure(self, values: Mapping[str, Any]) -> None:
        """Writes the configuration."""
        _write(self.folder / CONFIG, plain(values))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Writes the values of a step, as a line."""
        self._metrics.add(self._entry(step) | {"metrics": plain(values)})

    def log_table(self, name: str, columns: list[Any], rows: list[list[Any]], step: int) -> None:
        """Writes a table, as a line."""
        self._media.add(self._entry(step) | {"table": name, "columns": plain(columns), "rows": plain(rows)})

    def log_images(self, images: Mapping[str, Any], step: int) -> None:
        """Writes images as files, and a line that names them."""
        entry, files = self._entry(step), dict[str, list[str]]()
        (self.folder / "images").mkdir(exist_ok=True)
        for number, (name, listed) in enumerate(images.items()):  # different names may be the same safe name
            start = f"{entry['n']:06d}-{number}-{safe_name(name)}"
            files[name] = [f"{start}-{place}.png" for place in range(len(listed))]
            for file, image in zip(files[name], listed, strict=True):
                as_image(image).save(self.folder / "images" / file)
        self._media.add(entry | {"images": files})

    def rewind(self, calls: int, next_step: int) -> None:
        """Gives up the calls from number `calls` on, which will come again: they are moved to files `.given-up-N`."""
        ending = next(end for end in map(".given-up-{}".format, count(1)) if not any(self.folder.glob(f"*{end}")))
        self._metrics.keep_until(calls, ending)
        images, aside = self.folder / "images", self.folder / f"images{ending}"
        for entry in self._media.keep_until(calls, ending):
            for file in (file for files in entry.get("images", {}).values() for file in files):
                aside.mkdir(exist_ok=True)
                (images / file).rename(aside / file)
        self.calls = calls
        for kind in {"checkpoints", "loaded_checkpoints", "skipped_steps"} & set(self.story):
            self.story[kind] = [event for event in self.story[kind] if event["step"] < max(next_step, 1)]

    def discard(self) -> None:
        """Removes a record in which nothing was logged."""
        self.close()
        if self.calls == 0:
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets another writer have this record."""
        self._opened.close()

    def finish(self) -> None:
        """Notes the end of the run."""
        self.tell(state="finished", ended=datetime.now(UTC).isoformat(timespec="seconds"))
        self.close()

    def _entry(self, step: int) -> dict[str, Any]:
        self.calls += 1
        return {"n": self.calls - 1, "step": step, "time": time.time()}


def safe_name(name: str) -> str:
    """The name, with anything replaced that may mean something in a path."""
    return re.sub(r"[^\w.=+-]+", "_", name).strip(".")[:80] or "_"


def _write(path: Path, content: Any) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(aside, path)
