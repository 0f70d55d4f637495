"""The record of a run in its folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, final

from accel_track.as_image import as_image
from accel_track.local.damage import put_aside, tell_damage
from accel_track.local.documents import EVENTS, read_metadata, write_document
from accel_track.local.lines import LineFile
from accel_track.local.record_lock import lock, unlock
from accel_track.values import to_json

logger = logging.getLogger("accel")
METRICS, MEDIA, CONFIG, METADATA = "metrics.jsonl", "media.jsonl", "config.json", "run.json"
#: the files that make a folder a record
FILES = (METRICS, MEDIA, METADATA)
#: the names of image files: nothing else in a line may name a file that is moved
IMAGE = re.compile(r"[\w.=+-]+\.png")


def is_record(folder: Path) -> bool:
    """Return whether a folder has metrics.jsonl, media.jsonl or run.json."""
    return any(os.path.lexists(folder / name) for name in FILES)


@final
class RunRecord:
    """The writer of the record of a run. A record has one writer at a time.

    Calls are numbered. Steps may repeat and come in any order: readers sort by step, and the newest value counts.
    Damaged files are put aside, with a warning that names them.

    Args:
        folder: Folder of the record; made if it is missing.

    Raises:
        OSError: The folder cannot be written, or the record has another writer.
    """

    def __init__(self, folder: Path) -> None:
        missing = [name for name in FILES if not os.path.lexists(folder / name)] if is_record(folder) else []
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        #: the number of the next call
        self.calls = 0
        with ExitStack() as opened:  # a record of which a file cannot be opened is given up whole
            opened.callback(unlock, folder, lock(folder))
            self._metrics = opened.enter_context(closing(LineFile(folder / METRICS)))
            self._media = opened.enter_context(closing(LineFile(folder / MEDIA)))
            self.metadata = _metadata(folder / METADATA)
            images = folder / "images"
            if os.path.lexists(images) and not images.is_dir():
                put_aside(images, "it is no folder")
            self._opened = opened.pop_all()
        for name in missing:
            tell_damage(folder / name, "it is missing")

    def add_facts(self, **facts: Any) -> None:
        """Add facts to the metadata of the run."""
        lines = {file.path.name: file.lines for file in (self._metrics, self._media)}
        self.metadata |= {**to_json(facts), "lines": lines}
        write_document(self.folder / METADATA, self.metadata)

    def add_event(self, kind: str, step: int, details: Mapping[str, Any]) -> None:
        """Add an event, with its time, to the metadata of the run.

        Args:
            kind: The event, such as "checkpoint". Its list in the metadata is "checkpoints".
            step: Step after which it happened.
            details: More about it.
        """
        name, event = f"{kind.replace(' ', '_')}s", {"step": max(step, 0), "time": time.time(), **details}
        self.add_facts(**{name: [*self.metadata.get(name, []), event]})

    def configure(self, values: Mapping[str, Any]) -> None:
        """Write the configuration."""
        write_document(self.folder / CONFIG, to_json(values))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Write the values of a step, as a line."""
        self._metrics.add(self._entry(step) | {"metrics": to_json(values)})

    def log_table(self, name: str, columns: list[Any], rows: list[list[Any]], step: int) -> None:
        """Write a table, as a line.

        Args:
            name: Name of the table.
            columns: Names of the columns.
            rows: The rows.
            step: Number of the step.
        """
        self._media.add(self._entry(step) | {"table": name, "columns": to_json(columns), "rows": to_json(rows)})

    def log_images(self, images: Mapping[str, Any], step: int) -> None:
        """Write images as files, and a line that names them.

        Args:
            images: Lists of images by name. Each is an array, a tensor or an image of Pillow.
            step: Number of the step.
        """
        entry = self._entry(step)
        files: dict[str, list[str]] = {}
        (self.folder / "images").mkdir(exist_ok=True)
        for number, (name, listed) in enumerate(images.items()):  # different names may be the same safe name
            start = f"{entry['n']:06d}-{number}-{safe_name(name)}"
            files[name] = [f"{start}-{index}.png" for index in range(len(listed))]
            for file, image in zip(files[name], listed, strict=True):
                as_image(image).save(self.folder / "images" / file)
        self._media.add(entry | {"images": files})

    def rewind(self, calls: int, next_step: int) -> None:
        """Move calls from `calls` on to files with the ending `.given-up-N`, as the resumed run makes them again.

        Args:
            calls: Number of calls to keep.
            next_step: Step from which on events are given up.
        """
        ending = next(end for end in map(".given-up-{}".format, count(1)) if not any(self.folder.glob(f"*{end}")))
        self._metrics.keep_until(calls, ending)
        images, aside = self.folder / "images", self.folder / f"images{ending}"
        for entry in self._media.keep_until(calls, ending):
            named = [file for files in entry.get("images", {}).values() if isinstance(files, list) for file in files]
            for file in [file for file in named if isinstance(file, str) and IMAGE.fullmatch(file)]:
                aside.mkdir(exist_ok=True)
                with suppress(FileNotFoundError):
                    (images / file).rename(aside / file)
        lacking = max(calls - self._metrics.lines - self._media.lines, 0)
        if lacking and lacking != self.metadata.get("lacking"):
            logger.warning(
                "the record %s lacks %d of the %d calls before the checkpoint, and training goes on without them",
                *(self.folder, lacking, calls),
            )
        self.calls, self.metadata["lacking"] = calls, lacking
        for kind in (EVENTS - {"restarts"}) & set(self.metadata):
            self.metadata[kind] = [event for event in self.metadata[kind] if event["step"] < max(next_step, 1)]

    def discard(self) -> None:
        """Close the record, and remove it if nothing was logged."""
        self.close()
        if self.calls == 0:
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the files, and let another writer have the record."""
        self._opened.close()

    def finish(self) -> None:
        """Note the end of the run, and close the record."""
        self.add_facts(state="finished", ended=datetime.now(UTC).isoformat(timespec="seconds"))
        self.close()

    def _entry(self, step: int) -> dict[str, Any]:
        self.calls += 1
        return {"n": self.calls - 1, "step": step, "time": time.time()}


def safe_name(name: str) -> str:
    """Return a name for a file: at most 80 characters, with "_" for all but letters, digits and "_.=+-"."""
    return re.sub(r"[^\w.=+-]+", "_", name).strip(".")[:80] or "_"


def _metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a run, and put a damaged file aside."""
    if not os.path.lexists(path):
        return {}
    try:
        metadata, damaged = read_metadata(path)
    except ValueError as error:
        put_aside(path, f"{error}")
        return {}
    if damaged:
        put_aside(path, f"of its facts these cannot be read: {', '.join(damaged)}")
    known: dict[str, Any] = to_json(metadata)  # strict JSON
    return known
