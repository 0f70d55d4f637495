"""The checkpoints of an Accelerator."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from accel_checkpoint import Manifest, save_object
from accel_comm.errors import CollectiveMismatch
from accel_comm.transports.single import Single
from accel_state import ProcessControl, Run
from accel_state.environ import process_environ
from accel_state.exit_codes import STOPPED
from accel_state.topology import Topology
from torch import nn

from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.load import StateLoader
from accel.checkpoint.main_branch import find_main_branch
from accel.checkpoint.memory import MemoryCheckpoints
from accel.checkpoint.preemption import StopSignals
from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.save import StateSaver
from accel.checkpoint.save_job import next_of
from accel.checkpoint.whole_weights import full_state_dict, save_full_weights
from accel.configuration import ProjectConfiguration
from accel.processes import Processes
from accel.tracking.session import TrackingSession

logger = logging.getLogger("accel")


@final
class Checkpointer:
    """The checkpoints and the weights of an Accelerator, and the signals that ask it to stop.

    Args:
        processes: The processes that take part.
        registry: What a checkpoint holds.
        project: The folders and the names of checkpoints.
        tracking: The trackers, whose runs a checkpoint resumes.
        as_accelerate: Whether the program is for Accelerate: its main process may save without the others, and it skips
            by itself what a loader has served before the checkpoint, unless `use_stateful_dataloader` is set.
    """

    def __init__(
        self,
        processes: ProcessControl,
        registry: CheckpointRegistry,
        project: ProjectConfiguration,
        tracking: TrackingSession,
        *,
        as_accelerate: bool = False,
    ) -> None:
        self.registry = registry
        self.project = project
        self._processes = processes
        self._consensus = RankConsensus(processes)
        self._tracking = tracking
        #: a checkpoint that the trackers have not heard of
        self._unnoted: Path | None = None
        self._saver = StateSaver(processes, self._consensus, registry, project, tracking.states)
        self._as_accelerate = as_accelerate
        #: the checkpoints in memory, or None if nobody asks for them
        self.memory = MemoryCheckpoints.of(
            processes, self._consensus, registry, project, tracking.states_soon, process_environ()
        )
        self._loader = StateLoader(processes, self._consensus, registry, project, tracking, self.memory)
        self.signals = StopSignals(self._consensus)
        self.signals.install(project.stop_signals)

    @property
    def next_number(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return next_of(self.project)

    def save(
        self,
        output_dir: str | Path | None = None,
        safe_serialization: bool = True,
        *,
        asynchronous: bool = False,
        max_shard_size: int | str = "10GB",
    ) -> Path:
        """Write a checkpoint, and return its folder.

        Args:
            output_dir: The folder, or None for the next one of the project.
            safe_serialization: False only warns: checkpoints are safetensors.
            asynchronous: Return when everything is copied in memory, and write in the background.
            max_shard_size: The largest file of weights.

        Raises:
            CheckpointError: It could not be written; raised on every process.
            ValueError: There is no folder.

        Collective:
            Every process must call.
        """
        if not safe_serialization:
            warnings.warn(
                "save_state(safe_serialization=False): checkpoints are safetensors all the same", stacklevel=3
            )
        saver = self._saver
        here = self._processes.run.topology
        branch = find_main_branch(here) if here.world_size > 1 else None
        if branch is not None:
            why = self._why_not_alone(asynchronous=asynchronous)
            if not why:
                if not self._processes.is_main_process:
                    return Path(output_dir or self.project.checkpoints)
                saver = self._lone_saver(branch.site)
            elif branch.alone and self._processes.is_main_process:
                raise CollectiveMismatch(
                    f"save_state is under {branch.site}, which only the main process enters, and {why}; call save_state"
                    " on all ranks: it writes once"
                )
        self.wait()
        self._unnoted = folder = saver.save(output_dir, asynchronous=asynchronous, max_shard_size=max_shard_size)
        self._saver.newest = saver.newest
        if not asynchronous:
            self.wait()
        return folder

    def _why_not_alone(self, *, asynchronous: bool) -> str:
        """Return why the main process cannot save without the others, in words, or nothing."""
        if not self._as_accelerate:
            return "every rank has to take part"
        if asynchronous or self._saver.in_background or self.project.save_on_each_node:
            return "ranks agree on a checkpoint that is written in the background or on each machine"
        divided = self.registry.divided()
        return f"has only a part of {', '.join(divided)}" if divided else ""

    def _lone_saver(self, site: str) -> StateSaver:
        """Return a saver of this process alone, and warn of what its checkpoints lack."""
        lacks = "the random numbers of other ranks"
        spread = [item.name for item in self.registry.items() if item.collective]
        self._consensus.warn_once(
            f"save_state is under {site}, so that the main process saves without the others: checkpoints lack"
            f" {', '.join([lacks, *spread])}; call save_state on all ranks: it writes once"
        )
        run = self._processes.run
        alone = Processes(Run(Topology(), run.device, run.placed_on, Single(), run.precision))
        saver = StateSaver(alone, RankConsensus(alone), self.registry, self.project, self._tracking.states, lacks)
        saver.newest = self._saver.newest
        return saver

    def wait(self) -> None:
        """Wait until the checkpoint that is being written in the background is on the disk.

        Raises:
            CheckpointError: It could not be written; raised on every process.

        Collective:
            Every process must call.
        """
        folder, self._unnoted = self._unnoted, None
        self._saver.wait()
        if folder is not None:
            self._tracking.saved(folder)

    def load(self, input_dir: str | Path | None = None, *, map_location: Any = None) -> Path:
        """Restore everything from a checkpoint, and return its folder.

        Args:
            input_dir: The folder, or None for the newest whole checkpoint of the project.
            map_location: None, "cpu" or "on_device": tensors go to where the objects are, whatever it is.

        Raises:
            CheckpointError: There is no whole checkpoint, or it does not fit what was prepared and registered. The
                message lists all differences, and is raised on every process.
            TypeError: `map_location` is something else.

        Collective:
            Every process must call.
        """
        if map_location not in (None, "cpu", "on_device"):
            raise TypeError(f'map_location={map_location!r}: expected None, "cpu" or "on_device"')
        self.wait()
        loaded = self._loader.load(input_dir)
        loaders: list[Any] = self.registry.preparer.loaders if self._as_accelerate else []
        for loader in loaders:
            if not loader.use_stateful_dataloader:
                loader.rewind()
        return self._loaded(*loaded)

    def resume(self) -> Path | None:
        """Restore everything from the newest checkpoint of the project, if there is one.

        Returns:
            The folder of the checkpoint, or None if there is none yet.

        Raises:
            ValueError: There is no project_dir.
            CheckpointError: As for `load`.

        Collective:
            Every process must call.
        """
        self.wait()
        loaded = self._loader.resume()
        if self.memory is not None:
            self.memory.resumed(loaded)
        return None if loaded is None else self._loaded(*loaded)

    def _loaded(self, folder: Path, manifest: Manifest | None) -> Path:
        if manifest is not None:
            self._saver.newest = folder, manifest.files
        return folder

    def save_and_stop(self, output_dir: str | Path | None = None) -> NoReturn:
        """Write a checkpoint, and end the process with exit code 75.

        Raises:
            SystemExit: The checkpoint was written.
            CheckpointError: It was not; raised on every process.

        Collective:
            Every process must call.
        """
        folder = self.save(output_dir)
        if self._processes.is_main_process:
            logger.warning("stopped after writing %s; run the same command again to go on", folder)
        raise SystemExit(STOPPED)

    def end(self) -> None:
        """Wait until the checkpoint that is being written is on the disk, and end the trackers.

        Raises:
            CheckpointError: The checkpoint could not be written; raised on every process.

        Collective:
            Every process must call.
        """
        try:
            self.wait()
            if self.memory is not None:
                self.memory.wait()
        finally:
            self._tracking.end()

    def weights_of(self, model: nn.Module, *, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """Return the weights of a model, those of a sharded model whole on the main process and {} on the others.

        Args:
            model: A prepared model.
            unwrap: Take the names of the model itself, not those of its containers.

        Collective:
            Every process must call, if the model is sharded.
        """
        inner = self.registry.preparer.unwrap(model, keep_compile=False) if unwrap else model
        return full_state_dict(inner.state_dict(), self._processes.run)

    def save_model(
        self, model: nn.Module, folder: str | Path, max_shard_size: int | str = "10GB", safe_serialization: bool = True
    ) -> Path | None:
        """Write the weights of a model, under its own names.

        Args:
            model: A prepared model, or one that never was.
            folder: The folder for the files.
            max_shard_size: The largest file.
            safe_serialization: Write safetensors, not pickled weights.

        Returns:
            The path to open the weights by on the main process; None on the others.

        Collective:
            Every process must call, if the model is sharded.
        """
        with self.registry.keeping_whole_states(bool(self._processes.is_main_process)):
            state = self.registry.preparer.unwrap(model, keep_compile=False).state_dict()
        return save_full_weights(state, folder, self._processes, max_shard_size, safe_serialization=safe_serialization)

    def save_object(self, content: Any, path: str | Path, *, safe_serialization: bool = False) -> None:
        """Write an object on the main process.

        Args:
            content: Anything that `torch.save` takes.
            path: The path of the file.
            safe_serialization: Write a mapping of tensors as safetensors.
        """
        if self._processes.is_main_process:
            save_object(content, path, safe_serialization=safe_serialization)
