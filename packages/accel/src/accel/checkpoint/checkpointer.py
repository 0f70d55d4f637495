"""Saves everything that training goes on from."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, final

from accel_checkpoint import (
    AsyncWriter,
    CheckpointError,
    Manifest,
    Snapshot,
    StagedCheckpoint,
    collect,
    encode,
    read_manifest,
    size_in_bytes,
)
from accel_checkpoint.retention import retain
from accel_state import ProcessControl
from accel_state.exit_codes import STOPPED
from torch import nn

from accel.checkpoint import rng_state
from accel.checkpoint.destination import AUTOMATIC, SaveRequest, destination, next_of
from accel.checkpoint.io import CheckpointContents, about_this_run, write
from accel.checkpoint.load import StateLoader
from accel.checkpoint.preemption import StopSignals
from accel.checkpoint.progress_marker import note_progress
from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.votes import RankVotes, problems_of, refuse
from accel.configuration import ProjectConfiguration

logger = logging.getLogger("accel")
FAILED = "no checkpoint was written:"


@final
class Checkpointer:
    """Saves and loads the state of an Accelerator.

    A save takes two rounds of messages: what all have to write, and whether it was written. Hooks take two more, and
    one more is taken if each machine writes a checkpoint. Random numbers go to the ranks that write, and to no other.
    """

    def __init__(self, processes: ProcessControl, registry: CheckpointRegistry, project: ProjectConfiguration) -> None:
        self.registry = registry
        self.project = project
        self._processes = processes
        self._votes = RankVotes(processes)
        self._loader = StateLoader(processes, self._votes, registry, project)
        self._async_writer, self._snapshot = AsyncWriter(), Snapshot()
        self.signals = StopSignals(self._votes)
        self.signals.install(project.stop_signals)
        #: the checkpoint that this process wrote or read last
        self._newest: tuple[Path, Manifest] | None = None
        #: whether a checkpoint is, or was, written in the background, by whomever
        self._in_background = False

    @property
    def next_number(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return next_of(self.project)

    def save(self, output_dir: str | Path | None, *, asynchronous: bool, max_shard_size: int | str) -> Path:
        """The folder of the checkpoint, written or, `asynchronous`, copied in memory.

        Raises: CheckpointError, on every process, if it could not be written; ValueError without a folder.
        Collective: every process must call.
        """
        if output_dir is None and not self.project.automatic_checkpoint_naming:
            raise ValueError(
                "save_state needs the path of a folder, or"
                " ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)"
            )
        size_in_bytes(max_shard_size)
        for loss in self.registry.losses():
            self._votes.warn_once(loss)
        self.wait()
        models, vote = self.registry.models(), self._vote(output_dir)
        weights: dict[str, dict[str, Any]] = {name: model.state_dict() for name, model in models.items()}
        stage = self._hooked(vote, models, weights) if self.registry.save_hooks else None
        contents = self._contents(models, weights, max_shard_size)
        vote["problems"] += contents.problems
        rng = json.dumps(encode({"generators": rng_state.captured(self._processes.run.device)})).encode()
        told = self._votes.exchange("save_state: begin", vote | {"rng_bytes": len(rng), "token": secrets.token_hex(8)})
        target = self._settled(told, stage)
        writers = sorted({vote["request"]["writer"] for vote in told})
        rng_states = self._votes.gather(writers, rng, [vote["rng_bytes"] for vote in told])
        about = about_this_run(self._processes.num_processes, self.registry.preparer.optimizers)

        def put(begun: StagedCheckpoint | None) -> StagedCheckpoint:
            staged = begun or _staged(target)
            try:
                write(staged, contents, about, rng_states, self._newest)
            except BaseException:
                staged.abandon()
                raise
            return staged

        if asynchronous:
            put_by_all = partial(self._votes.done_by_all, writers, f"save/{told[0]['token']}")
            self._write_in_background(contents, lambda begun: put_by_all(lambda: put(begun)), stage, target)
        else:
            self._write(lambda: put(stage))
        return target

    def wait(self) -> None:
        """Returns when the checkpoint that is being written in the background is on the disk.

        Raises: CheckpointError, on every process, when it could not be written.
        Collective: every process must call.
        """
        if self._in_background:
            self._in_background = False
            self._in_turn("save_state: in background", self._async_writer.wait)

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
            self._newest = folder, manifest
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

    @property
    def _writer(self) -> int:
        """The rank that writes what this process has."""
        rank = self._processes.process_index
        return rank - self._processes.local_process_index if self.project.save_on_each_node else 0

    @property
    def _writes(self) -> bool:
        return self._processes.process_index == self._writer

    def _vote(self, output_dir: str | Path | None) -> dict[str, Any]:
        """Where this process is to write, and what stands against it, as it tells the others."""
        rank, problems = self._processes.process_index, list[str]()
        try:
            request = SaveRequest.of(output_dir, self.project, rank=rank, writer=self._writer)
        except (CheckpointError, ValueError, OSError) as error:
            request, problems = SaveRequest(self._writer, [AUTOMATIC], ""), [str(error)]
        return {"request": request.to_json(), "problems": problems}

    def _settled(self, told: list[dict[str, Any]], stage: StagedCheckpoint | None = None) -> Path:
        """The folder of the checkpoint, from what all processes say.

        Raises: CheckpointError if they were asked for different folders, or one has a problem; the stage is abandoned.
        """
        try:
            refuse(FAILED, [vote["problems"] for vote in told])
            return destination([SaveRequest(**vote["request"]) for vote in told], self._writer)
        except CheckpointError:
            if stage is not None:
                stage.abandon()
            raise

    def _hooked(
        self, vote: dict[str, Any], models: dict[str, nn.Module], weights: dict[str, dict[str, Any]]
    ) -> StagedCheckpoint | None:
        """Lets the hooks write into the stage that it returns, and takes out of `weights` what they have taken out.

        Collective: every process must call.
        """
        target = self._settled(self._votes.exchange("save_state: where", vote))
        stages = list[StagedCheckpoint]()
        problems = problems_of(lambda: stages.append(_staged(target))) if self._writes else []
        stage = stages[0] if stages else None
        told = self._votes.exchange("save_state: hooks", [str(stage.path) if stage is not None else "", problems])
        refuse(FAILED, [said for _, said in told], stage.abandon if stage is not None else lambda: None)
        listed, folder = list(weights.values()), told[self._writer][0]

        def call() -> None:
            for hook in list(self.registry.save_hooks.values()):
                hook(list(models.values()), listed, folder)

        vote["problems"] += problems_of(call, "a hook of save_state failed: ")
        if len(listed) == len(weights):
            weights.update(zip(weights, listed, strict=True))  # what a hook has put in the place of another
        else:
            left = {id(state) for state in listed}
            for name in [name for name, state in weights.items() if id(state) not in left]:
                del weights[name]
        return stage

    def _contents(
        self, models: dict[str, nn.Module], weights: dict[str, dict[str, Any]], shard: int | str
    ) -> CheckpointContents:
        """Collective: every process must call, for loaders whose state is spread over processes."""
        contents = CheckpointContents()
        for name, state in weights.items() if self._writes else ():
            add = partial(contents.add_model, name, models[name], state, shard)
            contents.problems += problems_of(add, f"{name}: ")
        for item in self.registry.items():
            if self._writes or item.kind == "DataLoader":
                contents.add(item)
        return contents

    def _write(self, put: Callable[[], StagedCheckpoint]) -> None:
        """Collective: every process must call."""
        if not self.project.save_on_each_node:
            self._in_turn("save_state: written", lambda: self._commit(put()))
            return
        staged: list[StagedCheckpoint] = []  # nobody names what another could not write
        try:
            self._in_turn("save_state: written", lambda: staged.append(put()))
            self._in_turn("save_state: named", lambda: self._commit(staged[0]))
        except BaseException:
            for stage in staged:
                stage.abandon()
            raise

    def _write_in_background(
        self,
        contents: CheckpointContents,
        put_by_all: Callable[[StagedCheckpoint], bool],
        stage: StagedCheckpoint | None,
        target: Path,
    ) -> None:
        """Collective: every process must call."""
        copied_by_all = Future[bool]()

        def write_and_commit(staged: StagedCheckpoint) -> None:
            with ExitStack() as undo:
                undo.callback(staged.abandon)
                if copied_by_all.result() and put_by_all(staged):
                    undo.pop_all()
                    self._commit(staged)

        def begin() -> None:
            nonlocal stage
            stage = stage or _staged(target)
            contents.files = self._snapshot.take(contents.files)
            self._async_writer.begin(partial(write_and_commit, stage))

        problems = problems_of(begin) if self._writes else []
        if problems and stage is not None:
            stage.abandon()
        try:
            self._votes.require("save_state: copied", FAILED, problems)
            self._in_background = True
        finally:
            copied_by_all.set_result(self._in_background)

    def _in_turn(self, what: str, work: Callable[[], None]) -> None:
        """Collective: every process must call."""
        self._votes.write(what, FAILED, work, each_machine=self.project.save_on_each_node)

    def _commit(self, stage: StagedCheckpoint) -> None:
        try:
            stage.commit()
        except BaseException:
            stage.abandon()
            raise
        self._newest = stage.target, read_manifest(stage.target)
        note_progress()
        if self.project.automatic_checkpoint_naming and self.project.total_limit is not None:
            try:
                retain(self.project.checkpoints, self.project.total_limit)
            except OSError as error:
                logger.warning("the checkpoint is there, and an older one could not be removed: %s", error)


def _staged(target: Path) -> StagedCheckpoint:
    collect(target.parent)
    return StagedCheckpoint(target)
