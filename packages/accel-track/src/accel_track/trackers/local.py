"""A tracker that writes a folder for each run, with nothing to install and no server."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.local.documents import read_metadata
from accel_track.local.record import METADATA, RunRecord, is_record, safe_name
from accel_track.local.run_facts import run_facts


@final
class LocalTracker(ClientTracker):
    """The record of a run in the folder `logging_dir`/project/run."""

    name = "local"
    requires_logging_directory = True
    default_logging_directory = "runs"
    takes = (object,)

    def __init__(self, project: str, logging_dir: str | Path, /) -> None:
        super().__init__(project, Path(logging_dir) / safe_name(project))

    @classmethod
    def missing(cls) -> None:
        """Return None, as nothing is missing."""

    def start(self) -> None:
        """Begin a new run, in a folder of its own.

        Raises:
            OSError: The folder cannot be written.
        """
        now = datetime.now(UTC)
        self._run = RunRecord(self._folder / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
        about = {"project": self._project, "run": self._run.folder.name, "state": "running", **run_facts()}
        self._run.add_facts(started=now.isoformat(timespec="seconds"), **about)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write values to config.json."""
        self._run.configure(values)

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.log(values, step)

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write images as PNG files.

        Args:
            values: Lists of images by name. Each is an array, a tensor or an image of Pillow.
            step: Number of the step. Default: the step after the newest.
            kwargs: Not used.
        """
        self._run.log_images(values, self._step(step))

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._run.log_table(name, columns, rows, step)

    def mark(self, kind: str, details: Mapping[str, Any]) -> None:
        """Add an event to run.json."""
        self._run.add_event(kind, self._next_step - 1, details)

    def state_dict(self) -> dict[str, Any]:
        """Return the name of the folder, the number of calls and the next step."""
        return {"run": self._run.folder.name, "calls": self._run.calls, "next_step": self._next_step}

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Return whether the metadata of that run say that it has finished, and False if it cannot be read."""
        try:
            metadata, _ = read_metadata(self._folder / safe_name(str(state["run"])) / METADATA)
        except ValueError:
            return False
        return metadata.get("state") == "finished"

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the run in its folder, and move what was logged after the state to other files there.

        Raises:
            LookupError: There is no such folder.
            OSError: It cannot be written, or has another writer.
        """
        folder = self._folder / safe_name(str(state["run"]))
        if not is_record(folder):
            raise LookupError(f"there is no record {folder}")
        if self._run is None or self._run.folder != folder:
            resumed = RunRecord(folder)
            if self._run is not None:
                self._run.discard()
            self._run = resumed
        self._next_step = state["next_step"]
        self._run.rewind(state["calls"], self._next_step)
        facts = run_facts()
        # if its metadata were damaged
        self._run.metadata = {"project": self._project, "run": folder.name, **facts, **self._run.metadata}
        self._run.add_facts(state="running", ended=None)
        self.mark("restart", facts)


TRACKER = LocalTracker
