"""The record in a folder: nothing to install, no server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, final

from accel_track.local.record import STORY, RunRecord, new_folder, safe_name
from accel_track.local.run_facts import run_facts
from accel_track.tracker import GeneralTracker


@final
class LocalTracker(GeneralTracker):
    """Records a run in the folder `logging_dir`/project/run."""

    name = "local"
    requires_logging_directory = True
    default_logging_directory: ClassVar[str] = "runs"

    def __init__(self, run_name: str, logging_dir: str | Path) -> None:
        super().__init__()
        self._project = run_name
        self._parent = Path(logging_dir).absolute()
        self._record: RunRecord | None = None

    @property
    def tracker(self) -> RunRecord:
        """The record.

        Raises: RuntimeError before `start`.
        """
        if self._record is None:
            raise RuntimeError("the local tracker has no record yet: call accelerator.init_trackers(...) first")
        return self._record

    def start(self) -> None:
        """Makes the folder of a new run.

        Raises: OSError if it cannot be written.
        """
        folder = new_folder(self._parent, self._project)
        self._record = RunRecord(folder)
        self._record.tell(project=self._project, run=folder.name, started=_now(), state="running", **run_facts())

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Writes config.json."""
        self.tracker.configure(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Adds a line to metrics.jsonl."""
        self.tracker.log(values, step)

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Writes images as PNG."""
        self.tracker.log_images(values, step)

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds a table to media.jsonl."""
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.to_numpy().tolist()
        self.tracker.log_table(table_name, list(columns or ()), [list(row) for row in data or ()], step)

    def finish(self) -> None:
        """Notes the end of the run."""
        if self._record is not None:
            self._record.tell(state="finished", ended=_now())
            self._record.close()
            self._record = None

    def mark(self, kind: str, details: Mapping[str, Any]) -> None:
        """Adds an event to run.json."""
        self.tracker.tell_event(kind, details)

    def state_dict(self) -> dict[str, Any]:
        """The folder, and how much of it there was."""
        record = self.tracker
        return {"run": record.folder.name, "calls": record.calls, "last_step": record.last_step}

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Whether the story of that run says that it has finished."""
        story = self._folder(state) / STORY
        return story.is_file() and json.loads(story.read_text()).get("state") == "finished"

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on in the folder of `state`; what was logged since is moved to files beside.

        Raises: LookupError if the folder is not there; OSError if it cannot be written.
        """
        folder = self._folder(state)
        if not (folder / STORY).is_file():
            raise LookupError(f"there is no record {folder}")
        if self._record is None or self._record.folder != folder:
            resumed = RunRecord(folder)
            if self._record is not None:
                self._record.discard()
            self._record = resumed
        self._record.rewind(state["calls"], state["last_step"])
        facts = run_facts()
        own = {name: facts[name] for name in ("host", "process", "world", "attempt")}
        self._record.tell(state="running", ended=None, **own)
        self._record.tell_event("restart", {name: facts[name] for name in ("command", "world", "versions", "git")})

    def _folder(self, state: Mapping[str, Any]) -> Path:
        return self._parent / safe_name(self._project) / safe_name(str(state["run"]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


TRACKER = LocalTracker
