"""Saves and loads everything that training goes on from, and stops when the job is told to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NoReturn, final

from accel_checkpoint import Manifest
from accel_state import ProcessControl
from accel_state.exit_codes import STOPPED

from accel.checkpoint.destination import next_of
from accel.checkpoint.load import StateLoader
from accel.checkpoint.preemption import StopSignals
from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.save import StateSaver
from accel.checkpoint.votes import RankVotes
from accel.configuration import ProjectConfiguration
from accel.tracking.session import TrackingSession

logger = logging.getLogger("accel")


@final
class Checkpointer:
    """Saves and loads the state of an Accelerator."""

    def __init__(
        self,
        processes: ProcessControl,
        registry: CheckpointRegistry,
        project: ProjectConfiguration,
        tracking: TrackingSession,
    ) -> None:
        self.registry = registry
        self.project = project
        self._processes = processes
        self._votes = RankVotes(processes)
        self._tracking = tracking
        #: a checkpoint that the trackers have not heard of
        self._unnoted: Path | None = None
        self._saver = StateSaver(processes, self._votes, registry, project, tracking.states)
        self._loader = StateLoader(processes, self._votes, registry, project, tracking)
        self.signals = StopSignals(self._votes)
        self.signals.install(project.stop_signals)

    @property
    def next_number(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return next_of(self.project)

    def save(self, output_dir: str | Path | None, *, asynchronous: bool, max_shard_size: int | str) -> Path:
        """The folder of the checkpoint, written or, `asynchronous`, copied in memory.

        Raises: CheckpointError, on every process, if it could not be written; ValueError without a folder.
        Collective: every process must call.
        """
        self.wait()
        self._unnoted = folder = self._saver.save(output_dir, asynchronous=asynchronous, max_shard_size=max_shard_size)
        if not asynchronous:
            self.wait()
        return folder

    def wait(self) -> None:
        """Returns when the checkpoint that is being written in the background is on the disk.

        Raises: CheckpointError, on every process, when it could not be written.
        Collective: every process must call.
        """
        folder, self._unnoted = self._unnoted, None
        self._saver.wait()
        if folder is not None:
            self._tracking.saved(folder)

    def load(self, input_dir: str | Path | None) -> Path:
        """The folder of the checkpoint that everything goes on from.

        Raises: CheckpointError, on every process, that lists all that stands against it.
        Collective: every process must call.
        """
        self.wait()
        return self._loaded(*self._loader.load(input_dir))

    def resume(self) -> Path | None:
        """The newest checkpoint of the project, from which everything goes on; None if there is none yet.

        Raises: ValueError without a project_dir; CheckpointError as `load`.
        Collective: every process must call.
        """
        self.wait()
        loaded = self._loader.resume()
        return None if loaded is None else self._loaded(*loaded)

    def _loaded(self, folder: Path, manifest: Manifest | None) -> Path:
        if manifest is not None:
            self._saver.newest = folder, manifest.files
        return folder

    def save_and_stop(self, output_dir: str | Path | None) -> NoReturn:
        """Writes a checkpoint, and ends the process with exit code 75.

        Raises: SystemExit; CheckpointError as `save`.
        Collective: every process must call.
        """
        folder = self.save(output_dir, asynchronous=False, max_shard_size="10GB")
        if self._processes.is_main_process:
            logger.warning("stopped after writing %s; run the same command again to go on", folder)
        raise SystemExit(STOPPED)
