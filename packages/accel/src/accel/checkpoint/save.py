"""Save everything that training resumes from: every rank takes part, and one or all write."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, final

from accel_checkpoint import AsyncWriter, CheckpointError, Snapshot, encode, size_in_bytes
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.hidden_folder import new_tag
from accel_checkpoint.retention import retain
from accel_ops import process_rng
from accel_state import ProcessControl
from torch import nn

from accel.checkpoint.consensus import RankConsensus, problems_of, refuse
from accel.checkpoint.contents import CheckpointContents, about_this_run
from accel.checkpoint.machine_files import exchange_files, routes_of
from accel.checkpoint.parts import has_parts
from accel.checkpoint.progress_marker import note_progress
from accel.checkpoint.registry import CheckpointRegistry
from accel.checkpoint.save_job import AUTOMATIC, Before, SaveJob, SaveRequest, destination
from accel.configuration import ProjectConfiguration

logger = logging.getLogger("accel")
FAILED = "no checkpoint was written:"
Weights = dict[str, dict[str, Any]]


@final
class StateSaver:
    """The saver of checkpoints.

    A save takes two rounds of messages: what all have to write, and whether it was written. Hooks take two more, and
    one more is taken if several machines write a checkpoint each. Random numbers go to the ranks that write, and to no
    other. Ranks that write parts of one checkpoint tell the main process in the store when they have.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        registry: What is saved.
        project: The folders and the names of checkpoints.
        tracker_states: A function that returns what to keep of the trackers.
        lacks: The random numbers that a checkpoint lacks, in words, if these processes are not all of the job.
        room: Function for checkpoints in memory, which machines do not share. It takes the bytes that this rank writes,
            and whether all ranks write parts, and raises if there is no room.
        on_error: Function that takes an error of writing in the background, which no call raises then.
    """

    def __init__(
        self,
        processes: ProcessControl,
        consensus: RankConsensus,
        registry: CheckpointRegistry,
        project: ProjectConfiguration,
        tracker_states: Callable[[], dict[str, Any]],
        lacks: str = "",
        room: Callable[[int, bool], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._processes = processes
        self._lacks = lacks
        self._tracker_states = tracker_states
        self._consensus = consensus
        self._registry = registry
        self._project = project
        self._room = room
        self._async_writer, self._snapshot = AsyncWriter(on_error), Snapshot()
        #: the checkpoint that this process wrote or read last, and the digests of its files
        self.newest: Before = None
        #: whether a checkpoint is, or was, written in the background, by whomever; and whether by all ranks
        self.in_background = self._by_all = False

    def save(self, output_dir: str | Path | None, *, asynchronous: bool, max_shard_size: int | str) -> Path:
        """Write a checkpoint, and return its folder.

        Args:
            output_dir: The folder, or None for the next one of the project.
            asynchronous: Return when everything is copied in memory, and write in the background.
            max_shard_size: The largest file of weights.

        Raises:
            CheckpointError: It could not be written; raised on every process.
            ValueError: There is no folder.

        Collective:
            Every process must call.
        """
        if output_dir is None and not self._project.automatic_checkpoint_naming:
            raise ValueError(
                "save_state needs the path of a folder, or"
                " ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)"
            )
        size_in_bytes(max_shard_size)
        for loss in self._registry.losses():
            self._consensus.warn_once(loss)
        self.wait()
        models, statement = self._registry.models(), self._statement(output_dir)
        with self._registry.keeping_whole_states(self._writes):
            weights: Weights = {name: model.state_dict() for name, model in models.items()}
            by_all = any(map(has_parts, weights.values()))
            job = self._hooked(statement, models, weights) if self._registry.save_hooks else None
            contents = self._contents(models, weights, max_shard_size, by_all=by_all)
        if self._room is not None:  # the others wait for what this rank says
            contents.problems += problems_of(partial(self._room, contents.size, by_all))
        statement["problems"] += contents.problems
        about = list[str]()
        if self._processes.is_main_process:  # a tracker may give what JSON has not
            words = "what the checkpoint is to say of the run: "
            statement["problems"] += problems_of(lambda: about.append(json.dumps(self._about())), words)
        rng = json.dumps(encode({"generators": process_rng.capture(self._processes.run.device)})).encode()
        told = self._consensus.exchange("save_state: begin", statement | {"rng_bytes": len(rng), "about": about})
        target = self._settled(told, job)
        writer_of = [said["request"]["writer"] for said in told]
        writers = sorted(set(writer_of))
        rng_states = self._consensus.gather(writers, rng, [said["rng_bytes"] for said in told])
        said_of_run = json.loads(told[0]["about"][0])  # the same on all machines that write one each
        stage = job.stage if job is not None else None
        job = SaveJob(target, told[self._writer]["tag"], self._writes, contents, said_of_run, rng_states, stage)
        self._by_all = by_all
        name = f"save/{told[0]['tag']}"
        work = partial(self._write_part, name, writer_of) if by_all else partial(self._write_whole, name, writers)
        if asynchronous:
            self._write_in_background(job, work)
        elif len(writers) > 1 and not by_all:
            self._write_on_each_machine(job)
        else:
            self._finish("save_state: written", partial(work, job))
        return target

    def wait(self) -> None:
        """Wait until the checkpoint that is being written in the background is on the disk.

        Raises:
            CheckpointError: It could not be written; raised on every process.

        Collective:
            Every process must call.
        """
        if self.in_background:
            self.in_background = False
            self._finish("save_state: in background", self._async_writer.wait)

    @property
    def busy(self) -> bool:
        """True while this process writes in the background."""
        return self._async_writer.busy

    @property
    def _writer(self) -> int:
        """The rank that writes what this process has."""
        rank = self._processes.process_index
        return rank - self._processes.local_process_index if self._project.save_on_each_node else 0

    @property
    def _writes(self) -> bool:
        return self._processes.process_index == self._writer

    def _about(self) -> dict[str, Any]:
        """Return what the manifest says about the run."""
        run, optimizers = self._processes.run, self._registry.preparer.optimizers
        about = about_this_run(run.mesh, self._processes.num_processes, optimizers)
        about["trackers"] = self._tracker_states()
        if self._lacks:
            about["absent"] = [self._lacks, *(item.name for item in self._registry.items() if item.collective)]
        return about

    def _statement(self, output_dir: str | Path | None) -> dict[str, Any]:
        """Return where this process is to write, and what conflicts with that, as it tells the others."""
        rank = self._processes.process_index
        problems: list[str] = []
        try:
            request = SaveRequest.of(output_dir, self._project, rank=rank, writer=self._writer)
        except (CheckpointError, ValueError, OSError) as error:
            request, problems = SaveRequest(self._writer, [AUTOMATIC], ""), [str(error)]
        return {"request": asdict(request), "problems": problems, "tag": new_tag()}

    def _settled(self, told: list[dict[str, Any]], job: SaveJob | None = None) -> Path:
        """Return the folder of the checkpoint, from what all processes say, or abandon the job and raise."""
        try:
            refuse(FAILED, [said["problems"] for said in told])
            return destination([SaveRequest(**said["request"]) for said in told], self._writer)
        except CheckpointError:
            if job is not None:
                job.abandon()
            raise

    def _hooked(self, statement: dict[str, Any], models: dict[str, nn.Module], weights: Weights) -> SaveJob | None:
        """Let hooks write into the stage of the job that is returned, and take weights out of `weights`."""
        told = self._consensus.exchange("save_state: where", statement)
        target = self._settled(told)
        job = SaveJob(target, told[self._writer]["tag"], self._writes, CheckpointContents(), {}, [])
        problems = problems_of(job.begin) if self._writes else []
        folders = self._consensus.exchange("save_state: hooks", [str(job.stage.path) if job.stage else "", problems])
        refuse(FAILED, [said for _, said in folders], job.abandon)
        listed, folder = list(weights.values()), folders[self._writer][0]

        def call() -> None:
            for hook in list(self._registry.save_hooks.values()):
                hook(list(models.values()), listed, folder)

        statement["problems"] += problems_of(call, "a hook of save_state failed: ")
        if len(listed) == len(weights):
            weights.update(zip(weights, listed, strict=True))  # what a hook has put in the place of another
        else:
            left = {id(state) for state in listed}
            for name in [name for name, state in weights.items() if id(state) not in left]:
                del weights[name]
        return job

    def _contents(
        self, models: dict[str, nn.Module], weights: Weights, shard: int | str, *, by_all: bool
    ) -> CheckpointContents:
        """Return what this rank writes, on every process, for loaders whose state is spread over processes."""
        contents = CheckpointContents()
        for name, state in weights.items() if self._writes or by_all else ():
            add = partial(contents.add_model, name, models[name], state, shard)
            contents.problems += problems_of(add, f"{name}: ")
        for item in self._registry.items():
            if (self._writes or by_all or item.collective) and not (item.collective and self._lacks):
                contents.add(item)
        if by_all and self._project.save_on_each_node and self._room is None:
            contents.problems.append(
                "save_on_each_node, and a model that is sharded over machines: no machine has all of it; leave it out,"
                " and save to a disk that all machines share"
            )
        if by_all:
            rank = self._processes.process_index
            contents.keep_own(self._processes.run.mesh, rank, writer=rank == 0)
        return contents

    def _write_whole(self, name: str, writers: list[int], job: SaveJob) -> None:
        """Write all, and name it if all these ranks have written theirs."""
        named = False
        try:
            if self._consensus.done_by_all(writers, name, partial(self._write_own, job)):
                self._commit(job)
                named = True
        finally:
            job.end(named=named)

    def _write_own(self, job: SaveJob) -> None:
        job.write_own(self.newest)
        job.seal()

    def _write_on_each_machine(self, job: SaveJob) -> None:
        """Write all and, in a round of its own, name it: a round hears of the end of another machine, a note never."""
        try:
            self._finish("save_state: written", partial(self._write_own, job))
            self._finish("save_state: named", partial(self._commit, job))
        except BaseException:
            job.abandon()
            raise

    def _write_part(self, name: str, writer_of: list[int], job: SaveJob) -> None:
        """Write the part of this rank, and name the checkpoint where all is there: on rank 0, or on each machine."""
        named, rank, results = False, self._processes.process_index, self._consensus.results
        here = [other for other, writer in enumerate(writer_of) if writer == rank]

        def seal() -> dict[str, int]:
            if rank or not parts:
                return {}
            job.join(parts, len(here))
            job.seal()
            return file_sizes(job.begin().path)

        def spread(there: dict[str, int]) -> None:
            sizes = there | {name: size for written in parts for name, (size, _) in written.items()}
            routes = routes_of(list(job.contents.parts.values()), writer_of, there)
            exchange_files(rank, routes, job.begin().path, sizes)

        try:
            # ranks that write none hear of rank 0 too, which seals nothing if its part failed
            ranks = range(len(writer_of)) if self._writes else [0, rank]
            parts = results(ranks, f"{name}/parts", lambda: job.write_own(self.newest))
            if self._project.save_on_each_node:  # in memory: machines keep parts for each other
                sealed = results([0], f"{name}/sealed", seal) if parts or not rank else []
                whole = any(sealed) and bool(results(here, f"{name}/spread", partial(spread, *sealed)))
            else:
                whole = bool(seal())
            if self._writes and whole:
                self._commit(job)
                named = True
        finally:
            # the others end when the checkpoint has its name, and remove their parts if it has none
            try:
                (named,) = self._consensus.results([self._writer], f"{name}/named", lambda: named)
            finally:
                job.end(named=named)
            if named and not self._writes:
                self.newest = job.target, job.begin().files

    def _write_in_background(self, job: SaveJob, work: Callable[[SaveJob], None]) -> None:
        """Copy what is to be written, on every process, and leave the rest to a thread."""
        copied_by_all = Future[bool]()

        def write() -> None:
            if copied_by_all.result():
                work(job)
            else:
                job.abandon()

        def begin() -> None:
            job.begin()
            job.contents.files = self._snapshot.take(job.contents.files)
            self._async_writer.begin(write)

        problems = problems_of(begin) if self._writes or self._by_all else []
        if problems:
            job.abandon()
        try:
            self._consensus.require("save_state: copied", FAILED, problems)
            self.in_background = True
        finally:
            copied_by_all.set_result(self.in_background)

    def _finish(self, what: str, work: Callable[[], object]) -> None:
        """Let those that write do their work, while every other process waits."""
        if self._by_all:
            self._consensus.require(what, FAILED, problems_of(work))
        else:
            self._consensus.write(what, FAILED, work, each_machine=self._project.save_on_each_node)

    def _commit(self, job: SaveJob) -> None:
        job.begin().commit()
        self.newest = job.target, job.begin().files
        note_progress()
        if self._project.automatic_checkpoint_naming and self._project.total_limit is not None:
            try:
                retain(self._project.checkpoints, self._project.total_limit, whole=self._room is None)
            except OSError as error:
                logger.warning("the checkpoint is there, and an older one could not be removed: %s", error)
