"""Keep checkpoints in memory that outlives the processes, and take each where the loop is between two batches."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, final

from accel_checkpoint import CheckpointError, Manifest
from accel_checkpoint.filesystem import identity_of
from accel_data.resume.epoch_pass import EpochPass
from accel_state import CannotRun, ProcessControl
from accel_state.environ import MEMORY_CHECKPOINT_EVERY, MEMORY_CHECKPOINTS
from accel_state.save_interval import SaveInterval

from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.machine_memories import MachineMemories
from accel.checkpoint.memory_clock import MemoryClock
from accel.checkpoint.memory_room import room_for
from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.save import StateSaver
from accel.configuration import ProjectConfiguration

logger = logging.getLogger("accel")
#: how many are kept, while one more is written
KEPT = 2
AHEAD = (
    "a checkpoint is not kept in memory: batches were read before they are trained on, or left out, and would be"
    " missing after it; ask the prepared loader for a batch in the thread that trains, when the step before is over"
)
GONE = (
    "no checkpoints are kept in memory until the launcher starts the job again: its folder is gone, as systems remove"
    " the memory of users who log out"
)


@final
class MemoryCheckpoints:
    """The checkpoints in memory of a job, which its launcher removes at the end.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        registry: What is saved.
        folder: The folder of the launcher of this machine.
        interval: The time between two of them.
        project: The project that they belong to.
        tracker_states: A function that returns what to keep of the trackers.
    """

    def __init__(
        self,
        processes: ProcessControl,
        consensus: RankConsensus,
        registry: CheckpointRegistry,
        folder: Path,
        interval: SaveInterval,
        project: ProjectConfiguration,
        tracker_states: Callable[[], dict[str, Any]],
    ) -> None:
        self._processes, self._consensus, self._registry = processes, consensus, registry
        self._clock = MemoryClock(interval)
        topology, place = processes.run.topology, project.checkpoints.absolute()
        # a script may train for several projects, one after the other
        folder /= hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
        self._project = ProjectConfiguration(
            folder,
            automatic_checkpoint_naming=True,
            total_limit=KEPT,
            save_on_each_node=topology.local_world_size < topology.world_size,
        )
        self.folder = self._project.checkpoints
        self.machines = MachineMemories(processes, consensus, self.folder)
        self._saver = StateSaver(
            processes, consensus, registry, self._project, tracker_states, room=self._room, on_error=_tell
        )
        #: the thread in which the script has resumed, and whether none was taken yet, which tells the room
        self._thread: int | None = None
        self._first = True
        #: the steps that were over when each loader was asked for a batch the last time, and the loaders of training
        self._steps_at: dict[object, int] = {}
        self._trains: set[object] = set()
        if processes.is_local_main_process:
            with suppress(OSError):  # the first that is due says that the folder is gone
                folder.mkdir(exist_ok=True)
                place.parent.mkdir(parents=True, exist_ok=True)
                # another container may have another project at the same path
                for name in identity_of(place.parent):
                    (folder / name).touch()
                (folder / "project").symlink_to(place)  # it is there if this is no first start
        registry.components.accumulation.before_batch = self.before_batch

    @classmethod
    def of(
        cls,
        processes: ProcessControl,
        consensus: RankConsensus,
        registry: CheckpointRegistry,
        project: ProjectConfiguration,
        tracker_states: Callable[[], dict[str, Any]],
        environ: Mapping[str, str],
    ) -> MemoryCheckpoints | None:
        """Return the checkpoints in memory that the script or the launcher asks for, or None.

        Args:
            processes: The processes that take part.
            consensus: What they say to each other.
            registry: What is saved.
            project: The project that they belong to, with what the script asks for.
            tracker_states: A function that returns what to keep of the trackers.
            environ: The environment, with what the launcher says.

        Raises:
            CannotRun: The script asks for them, and nobody would remove them.
        """
        asked = project.memory_checkpoint_every
        interval = SaveInterval.of(asked or environ.get(MEMORY_CHECKPOINT_EVERY))
        if interval is None:
            return None
        folder = environ.get(MEMORY_CHECKPOINTS)
        if folder and project.project_dir:
            return cls(processes, consensus, registry, Path(folder), interval, project, tracker_states)
        why = (
            "resume() looks for them by the project, and there is no project_dir: pass Accelerator(project_dir=...)"
            if folder
            else "nobody would remove them, as no `accel launch` watches these processes, or it has found no tmpfs:"
            " start the script by `accel launch --memory_checkpoint_every N`, or leave memory_checkpoint_every out"
        )
        if asked:
            raise CannotRun(f"memory_checkpoint_every={asked!r}", [why])
        consensus.warn_once(f"no checkpoints are kept in memory: {why}")
        return None

    def resumed(self, loaded: tuple[Path, Manifest | None] | None) -> None:
        """Note that the script resumes, so that checkpoints help it, and say what it has loaded."""
        self._thread = threading.get_ident()
        self._clock.begin(self._steps)
        folder, manifest = loaded or (Path(), None)
        if manifest is not None and self._processes.is_main_process:
            where, (written, steps), age = "in memory", manifest.moment, "of unknown age"
            if folder.parent != self.folder:
                where = "on the disk"
                launcher = str(manifest.about.get("memory"))
                # not by Path, which raises for a folder in another user's
                if os.path.isdir(launcher) and launcher != str(self.folder.parents[1]):
                    where += ", saved by another job, which may still run"
            with suppress(ValueError):
                age = f"{max(0.0, time.time() - datetime.fromisoformat(written).timestamp()):.0f} s old"
            logger.warning("resumed from the checkpoint %s, %s: step %d, %s", folder, where, steps, age)

    def before_batch(self, asked: EpochPass, first: bool) -> None:
        """Save if it is due, as a loader is asked for its next batch.

        Args:
            asked: The pass over the loader.
            first: Whether it is the first batch of the pass.

        Raises:
            SystemExit: There is no room for the first one, which the main process has said; raised on every process.

        Collective:
            Every process must call, for the loader of training.
        """
        if self._thread not in (None, threading.get_ident()):
            self._consensus.warn_once(AHEAD)
            return
        step, loader = self._steps, asked.family
        before, self._steps_at[loader] = self._steps_at.get(loader, step), step
        # a script may read all batches of a window, and then train: only the first is asked for when nothing is left
        stepped = step > before
        if stepped and not first:
            self._trains.add(loader)
        waiting = self._registry.components.accumulation.waiting
        if not stepped or loader not in self._trains or not self._clock.asks(step) or waiting:
            return
        training = self._registry.training
        apart = training.local_only or (training.joining and self._processes.num_processes > 1)
        if apart or self._thread is None:
            self._consensus.warn_once(
                "no checkpoints are kept in memory inside of LocalSGD and of join_uneven_inputs, where each process has"
                " steps of its own"
                if apart
                else "no checkpoints are kept in memory: after a failure this script would begin anew, as it does not"
                " call accelerator.resume(); call it after prepare, before the loop"
            )
            return
        told = self._consensus.exchange(
            "checkpoint in memory: due",
            [self._clock.elapsed_s, self._saver.busy, asked.reads_ahead, self.folder.parent.is_dir()],
        )
        elapsed_s, busy, ahead, there = zip(*told, strict=True)
        if any(ahead):
            self._consensus.warn_once(AHEAD)
            return
        if not all(there):
            self._consensus.warn_once(GONE)
        elif any(busy) or not self._clock.due(step, max(elapsed_s)):
            return
        else:
            self._save()
        self._clock.begin(step)

    def wait(self) -> None:
        """Wait until none is being written, on every process. What fails was said."""
        self._saver.wait()

    def _save(self) -> None:
        try:
            self._saver.save(None, asynchronous=True, max_shard_size="10GB")
        except CheckpointError as error:  # the same on all processes
            if self._processes.is_main_process:
                _tell(error)
            if self._first:
                # words for a person, and no traceback: no process ends before the main process has said them
                self._consensus.exchange("checkpoint in memory: refused", None)
                raise SystemExit(1) from None
        self._first = False

    @property
    def _steps(self) -> int:
        """The optimizer steps that are over."""
        return max((optimizer.ended for optimizer in self._registry.preparer.optimizers), default=0)

    def _room(self, size: int, by_all: bool) -> None:
        """Raise if this machine has no room for the first, or say what they need. This rank writes `size` bytes."""
        if self._first and self._processes.is_local_main_process:
            topology = self._processes.run.topology
            kept = topology.local_world_size * (1 + self._project.save_on_each_node) if by_all else 1
            # while it is written; a machine that lacks a part when it resumes gets all
            newest = topology.world_size if by_all else 1
            logger.warning("%s", room_for(self.folder.parent, size * kept, size * (KEPT * kept + newest)))


def _tell(error: Exception) -> None:
    logger.warning("a checkpoint in memory was not kept: %s", error)
