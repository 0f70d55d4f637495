"""Saving everything that training goes on from."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from accel_checkpoint import (
    AsyncWriter,
    CheckpointError,
    Snapshot,
    StagedCheckpoint,
    collect,
    encode,
    read_manifest,
    require_replaceable,
    size_in_bytes,
)
from accel_checkpoint.retention import checkpoint_path, next_number, retain
from accel_state.exit_codes import STOPPED
from torch import nn

from accel.checkpoint import rng_state
from accel.checkpoint.io import CheckpointContents, about_this_run, write
from accel.checkpoint.load import Resuming
from accel.checkpoint.preemption import USUAL, StopSignals
from accel.checkpoint.progress_marker import note_progress
from accel.configuration import ProjectConfiguration

logger = logging.getLogger("accel")

FAILED = "no checkpoint was written:"
AUTOMATIC = "none, to be named automatically"


class Checkpoints(Resuming):
    """What a script saves to go on from."""

    def _prepare_checkpoints(self, project: ProjectConfiguration, project_dir: str | Path | None) -> None:
        super()._prepare_checkpoints(project, project_dir)
        self._async_writer, self._snapshot = AsyncWriter(), Snapshot()
        self._signals = StopSignals()
        self._signals.install(project.stop_signals)
        #: whether a checkpoint is, or was, written in the background, by whomever
        self._behind_us = False

    @property
    def save_iteration(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        project = self.project_configuration
        if not project.automatic_checkpoint_naming:
            return project.iteration
        return max(project.iteration, next_number(project.checkpoints))

    def save_state(
        self,
        output_dir: str | Path | None = None,
        safe_serialization: bool = True,
        *,
        asynchronous: bool = False,
        max_shard_size: int | str = "10GB",
    ) -> Path:
        """The folder of a checkpoint of all that was prepared or registered: it is there whole, or not at all.

        With `asynchronous` training goes on when everything is copied in memory; errors of the writing come with the
        next call, or with `wait_for_checkpoint`.

        Raises: CheckpointError, on every process, when it could not be written; what was there before stays. ValueError
        without a folder.
        Collective: every process must call.
        """
        if not safe_serialization:
            raise ValueError("save_state(safe_serialization=False): a checkpoint holds no pickle; leave it out")
        if output_dir is None and not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError(
                "save_state needs the path of a folder, or"
                " ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)"
            )
        size_in_bytes(max_shard_size)
        self._warn_of_what_is_lost()
        self.wait_for_checkpoint()
        target, stage = self._begun(output_dir)
        models = self._models()
        weights: dict[str, dict[str, Any]] = {name: one.state_dict() for name, one in models.items()}
        if self._save_hooks:
            self._hooked(stage, models, weights)
        contents = self._contents(models, weights, max_shard_size)
        mine = encode({"generators": rng_state.captured(self.run.device)})
        ranks = self._tell("save_state: generators", mine)
        self._agree("save_state: what there is", FAILED, contents.problems, _leaving(stage))
        about = about_this_run(self.num_processes, max((one.steps for one in self._preparer.optimizers), default=0))

        def put() -> StagedCheckpoint:
            here = stage or StagedCheckpoint(target)
            try:
                write(here, contents, about, ranks, self._newest)
            except BaseException:
                here.abandon()
                raise
            return here

        if asynchronous:
            self._behind(contents, put, _leaving(stage))
        else:
            self._at_once(put)
        return target

    def wait_for_checkpoint(self) -> None:
        """Returns when the checkpoint that is being written in the background is on the disk.

        Raises: CheckpointError, on every process, when it could not be written.
        Collective: every process must call.
        """
        if self._behind_us:
            self._behind_us = False
            self._in_turn("save_state: behind", self._async_writer.wait)

    def stop_requested(self) -> bool:
        """Whether a signal has asked any process of the job to stop: SIGTERM or SIGUSR1, or the `stop_signals`.

        Collective: every process must call, after the same optimizer step.
        """
        if not self._signals.installed and self._signals.received is None:
            self._signals.install(USUAL)
        told = self._tell("stop_requested", self._signals.received)
        came = {rank: name for rank, name in enumerate(told) if name is not None}
        if came:
            self._say_once(
                f"stopping, as {', '.join(f'rank {rank} was told by {name}' for rank, name in came.items())}"
            )
        return bool(came)

    def save_and_stop(self, output_dir: str | Path | None = None) -> NoReturn:
        """Writes a checkpoint, and ends the process with exit code 75: to go on, run the same command again.

        Raises: SystemExit; CheckpointError as `save_state`.
        Collective: every process must call.
        """
        folder = self.save_state(output_dir)
        if self.is_main_process:
            logger.warning("stopped after writing %s; run the same command again to go on", folder)
        raise SystemExit(STOPPED)

    def end_training(self) -> None:
        """Finishes what goes on in the background.

        Collective: every process must call.
        """
        self.wait_for_checkpoint()

    @property
    def _writer(self) -> int:
        """The rank that writes what this process has."""
        return self.process_index - self.local_process_index if self.project_configuration.save_on_each_node else 0

    @property
    def _writes(self) -> bool:
        return self.process_index == self._writer

    def _begun(self, output_dir: str | Path | None) -> tuple[Path, StagedCheckpoint | None]:
        """Where the checkpoint will be, as the one says that writes it, and, with hooks, the stage of it.

        Collective: every process must call.
        """
        target, problems, stage, number = Path(), list[str](), None, 0
        if self._writes and output_dir is None:
            try:
                number = self.save_iteration
            except (CheckpointError, ValueError, OSError) as error:
                problems.append(str(error))
        # machines that share no disk may have lost some: all give it the same number
        told = self._tell("save_state: number", [number, _asked(output_dir), self._writer])
        _require_one_folder([asked for _, asked, _ in told], [writer for _, _, writer in told])
        number = max(one for one, _, _ in told)
        if self._writes and not problems:
            try:
                target = self._target(output_dir, number)
                require_replaceable(target)
                collect(target.parent)
                stage = StagedCheckpoint(target) if self._save_hooks else None
            except (CheckpointError, ValueError, OSError) as error:
                problems.append(str(error))
        self._agree("save_state: where", FAILED, problems, _leaving(stage))
        return Path(self._tell("save_state: there", str(target))[self._writer]), stage

    def _target(self, output_dir: str | Path | None, number: int) -> Path:
        if output_dir is None:
            return checkpoint_path(self.project_configuration.checkpoints, number).absolute()
        return Path(output_dir).absolute()

    def _hooked(
        self, stage: StagedCheckpoint | None, models: dict[str, nn.Module], weights: dict[str, dict[str, Any]]
    ) -> None:
        """Lets the hooks write into the stage, and takes out of `weights` what they have taken out.

        Collective: every process must call.
        """
        staged = self._tell("save_state: hooks", str(stage.path) if stage is not None else None)[self._writer]
        listed, problems = list(weights.values()), list[str]()
        try:
            for hook in list(self._save_hooks.values()):
                hook(list(models.values()), listed, str(staged))
        except Exception as error:  # noqa: BLE001 - whatever the user's own code raises is told to all
            problems.append(f"a hook of save_state failed: {type(error).__name__}: {error}")
        self._agree("save_state: hooks done", FAILED, problems, _leaving(stage))
        if len(listed) == len(weights):
            weights.update(zip(weights, listed, strict=True))  # what a hook has put in the place of one
            return
        left = {id(one) for one in listed}
        for name in [name for name, one in weights.items() if id(one) not in left]:
            del weights[name]

    def _contents(
        self, models: dict[str, nn.Module], weights: dict[str, dict[str, Any]], shard: int | str
    ) -> CheckpointContents:
        """Collective: every process must call, for loaders whose state is spread over processes."""
        found = CheckpointContents()
        for name, state in weights.items() if self._writes else ():
            try:
                found.add_model(name, models[name], state, shard)
            except Exception as error:  # noqa: BLE001 - all processes are to hear of it, and none to wait
                found.problems.append(f"{name}: {_in_words(error)}")
        for item in self._items():
            if self._writes or item.kind == "DataLoader":
                found.add(item)
        return found

    def _at_once(self, put: Callable[[], StagedCheckpoint]) -> None:
        """Collective: every process must call."""
        staged: list[StagedCheckpoint] = []
        try:
            self._in_turn("save_state: written", lambda: staged.append(put()))
        except CheckpointError:
            for one in staged:
                one.abandon()
            raise
        self._in_turn("save_state: named", lambda: self._committed(staged[0]))

    def _behind(
        self, contents: CheckpointContents, put: Callable[[], StagedCheckpoint], leave: Callable[[], None]
    ) -> None:
        """Collective: every process must call."""
        problems = list[str]()
        self._behind_us = True  # also where one fails: another may have begun
        if self._writes:
            try:
                contents.files = self._snapshot.take(contents.files)
                self._async_writer.begin(lambda: self._committed(put()))
            except Exception as error:  # noqa: BLE001 - all processes are to hear of it, and none to wait
                problems.append(_in_words(error))
                leave()
        self._agree("save_state: copied", FAILED, problems)

    def _in_turn(self, what: str, work: Callable[[], None]) -> None:
        """Lets those that write do it, for as long as it takes them, and fails on all where it fails on one.

        Collective: every process must call.
        """
        problems = list[str]()
        with self._after(self._writer):
            if self._writes:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - all processes are to hear of it, and none to wait
                    problems.append(_in_words(error))
        self._agree(what, FAILED, problems)

    def _committed(self, stage: StagedCheckpoint) -> None:
        project = self.project_configuration
        try:
            stage.commit()
        except CheckpointError:
            stage.abandon()
            raise
        self._newest = stage.target, read_manifest(stage.target)
        note_progress()
        if project.automatic_checkpoint_naming and project.total_limit is not None:
            try:
                retain(project.checkpoints, project.total_limit)
            except OSError as error:
                logger.warning("the checkpoint is there, and an older one could not be removed: %s", error)


def _asked(output_dir: str | Path | None) -> list[str]:
    """What a process was asked for: machines may stand in other folders, and one may name its own in another way."""
    return [AUTOMATIC] if output_dir is None else [str(Path(output_dir)), os.path.abspath(output_dir)]


def _require_one_folder(asked: list[list[str]], writers: list[int]) -> None:
    """Raises: CheckpointError where a rank was asked for another folder than the rank that writes for it."""
    if any(set(one).isdisjoint(asked[writer]) for one, writer in zip(asked, writers, strict=True)):
        rows = "".join(f"\n  rank {rank}: {one[0]}" for rank, one in enumerate(asked))
        raise CheckpointError(f"{FAILED} save_state was asked for different folders{rows}\ngive every rank the same")


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _leaving(stage: StagedCheckpoint | None) -> Callable[[], None]:
    return stage.abandon if stage is not None else lambda: None
