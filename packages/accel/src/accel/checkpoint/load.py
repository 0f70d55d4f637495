"""Load a checkpoint, which is verified and compared before anything is changed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

import torch
from accel_checkpoint import CheckpointError, Manifest, decode, read_manifest
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.retention import list_checkpoints
from accel_state import ProcessControl
from torch import nn

from accel.checkpoint.apply import cannot_refuse, put, put_weights
from accel.checkpoint.consensus import RankConsensus, by_rank, problems_of
from accel.checkpoint.find import CheckpointFinder
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint, item_problems
from accel.checkpoint.memory import MemoryCheckpoints
from accel.checkpoint.parts import is_divided
from accel.checkpoint.reading_lock import ReadingLock
from accel.checkpoint.registry import REST, CheckpointRegistry, StatefulItem
from accel.checkpoint.saved_generators import SavedGenerators
from accel.checkpoint.verification import SharedVerification
from accel.configuration import ProjectConfiguration
from accel.tracking.session import TrackingSession

logger = logging.getLogger("accel")
#: how often a checkpoint is looked for, if another job moves each before it is loaded
ATTEMPTS = 50


@final
class StateLoader:
    """The loader of checkpoints.

    `load` and `resume` return the folder, and the manifest unless Accelerate wrote the checkpoint.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        registry: What is loaded.
        project: The folder of the checkpoints.
        tracking: The trackers, whose runs are resumed.
        memory: The checkpoints in memory, from which training resumes too.
    """

    def __init__(
        self,
        processes: ProcessControl,
        consensus: RankConsensus,
        registry: CheckpointRegistry,
        project: ProjectConfiguration,
        tracking: TrackingSession,
        memory: MemoryCheckpoints | None,
    ) -> None:
        self._tracking = tracking
        self._processes = processes
        self._consensus = consensus
        self._registry = registry
        self._project = project
        self._finder, self._memory = CheckpointFinder(processes, consensus, project), memory

    def load(self, input_dir: str | Path | None) -> tuple[Path, Manifest | None]:
        """Load the checkpoint in a folder, or the newest whole one of the project.

        Raises:
            CheckpointError: It lists all that conflicts with the checkpoint; raised on every process.

        Collective:
            Every process must call.
        """
        loaded = self._loaded(input_dir, resuming=False)
        if loaded is None:
            folder = self._project.checkpoints
            raise CheckpointError(f"there is no whole checkpoint in {folder}; give load_state the path of one")
        return loaded

    def resume(self) -> tuple[Path, Manifest | None] | None:
        """Load the newest checkpoint of the project, if there is one.

        Raises:
            ValueError: There is no project_dir.
            CheckpointError: As for `load`.

        Collective:
            Every process must call.
        """
        self._consensus.require("resume: where", "no checkpoint could be written here:", self._finder.unusable())
        return self._loaded(None, resuming=True)

    def _loaded(self, input_dir: str | Path | None, *, resuming: bool) -> tuple[Path, Manifest | None] | None:
        """Load the first checkpoint that is not damaged, and look again if another job moves one meanwhile."""
        error = CheckpointError()
        for _ in range(ATTEMPTS):
            with ExitStack() as locks:
                chosen, by_accelerate = self._finder.chosen(input_dir, locks)
                if by_accelerate:
                    self._load_from_accelerate(chosen[0])
                    return chosen[0], None
                found = chosen if input_dir is None and self._processes.is_main_process else []
                if resuming and self._memory is not None:
                    chosen = self._memory.machines.merged_with(chosen)
                locked = [ReadingLock(folder, found=folder in found) for folder in chosen]
                loaded = self._first_whole(locked, resuming=resuming)
            if not isinstance(loaded, CheckpointError):
                return loaded
            error = loaded
            if self._processes.is_main_process:
                logger.warning("another job has removed or replaced a checkpoint while it was loaded: looking again")
        raise error

    def _first_whole(
        self, locks: Sequence[ReadingLock], *, resuming: bool
    ) -> tuple[Path, Manifest] | CheckpointError | None:
        """Load the first checkpoint that is not damaged, or return the error if another job has moved one."""
        for place, lock in enumerate(locks, start=1):
            if self._memory is not None:
                self._memory.machines.complete(lock.folder)
            with lock:
                problems, checkpoint = self._verified(lock)
                error = CheckpointError("\n".join([f"the checkpoint {lock.folder} cannot be loaded:", *problems]))
                if checkpoint is not None:
                    try:
                        self._apply(checkpoint, resuming=resuming)
                    except CheckpointError as refused:  # on all processes alike
                        error = refused
                    else:
                        self._apply_order(checkpoint)
                        return lock.folder, checkpoint.manifest
                moved = self._consensus.exchange("load_state: moved", lock.was_moved())
            if any(moved):
                return error
            if checkpoint is not None or place == len(locks):
                raise error
            if self._processes.is_main_process:
                logger.warning(
                    "the checkpoint %s cannot be loaded, and the one before is:\n%s",
                    *(lock.folder, "\n".join(problems)),
                )
        return None

    def _load_from_accelerate(self, folder: Path) -> None:
        """Load a checkpoint of Accelerate, on every process."""
        from accel_names.checkpoint.accelerate_checkpoint import AccelerateCheckpoint

        registry = self._registry
        preparer = registry.preparer
        checkpoint = AccelerateCheckpoint(
            folder,
            models=registry.models(),
            optimizers=[prepared.optimizer for prepared in preparer.optimizers],
            schedulers=preparer.schedulers,
            objects=list(registry.objects.values()),
            scaler=registry.components.scaler,
        )
        about = f"{folder} cannot be gone on from, and nothing was changed:"
        self._consensus.require("load_state: fits", about, checkpoint.problems)
        checkpoint.load()
        registry.components.accumulation.reset()
        for optimizer in preparer.optimizers:
            optimizer.discard_gradients()
        self._consensus.warn_once(checkpoint.left)

    def _verified(self, lock: ReadingLock) -> tuple[list[str], LoadedCheckpoint | None]:
        """Return what is wrong with the files of a checkpoint, and its content if nothing is."""
        folder, found = lock.folder, list[tuple[Manifest, SharedVerification]]()
        vote: dict[str, Any] = {"problems": [], "digest": "", "disk": None}

        def begin() -> None:
            if not folder.is_dir():
                raise CheckpointError(f"{folder} is not a folder{self._finder.others(folder)}")
            inside = [*list_checkpoints(folder), *list_checkpoints(folder / "checkpoints")]
            if inside and not (folder / MANIFEST).exists():
                raise CheckpointError(f"{folder} is not a checkpoint, but has some in it: give one, {inside[-1][1]}")
            manifest = read_manifest(folder)
            files = self._verification(folder, manifest)
            vote["digest"] = hashlib.sha256(manifest.as_bytes()).hexdigest()
            vote["disk"], vote["problems"] = files.disk, files.verify()
            found.append((manifest, files))

        failed = problems_of(begin)
        told = self._consensus.exchange("load_state: files", vote | ({"problems": failed} if failed else {}))
        lines = by_rank([vote["problems"] for vote in told])
        if not lines and len({vote["digest"] for vote in told}) > 1:
            lines = [
                f"  processes find different checkpoints at {folder}: their machines share no disk, and one lost some"
            ]
        if not lines and any(vote["disk"] != told[0]["disk"] for vote in told):
            problems = list[str]()
            failed = problems_of(lambda: problems.extend(found[0][1].verify_rest()))
            lines = by_rank(self._consensus.exchange("load_state: files of each machine", failed or problems))
        if lines:
            return lines, None
        manifest, files = found[0]
        return [], LoadedCheckpoint(lock, manifest, files.tensors)

    def _verification(self, folder: Path, manifest: Manifest) -> SharedVerification:
        shards = any(map(is_divided, self._registry.models().values()))
        states = {item["file"] for item in manifest.items.values() if isinstance(item.get("file"), str)}
        keep = states & {REST} if shards else states
        return SharedVerification(folder, manifest, self._processes.run.topology, keep=keep, own_parts=shards)

    def _apply(self, checkpoint: LoadedCheckpoint, *, resuming: bool) -> None:
        """Compare a checkpoint with what is there, and put it there, on every process."""
        folder, saved = checkpoint.folder, checkpoint.manifest.items
        models, wanted = self._registry.models(), checkpoint.without_absent(self._registry.items())
        # those that are not in it are the hooks' to load
        own = {name: model for name, model in models.items() if name in saved or not self._registry.load_hooks}
        problems = item_problems(checkpoint, wanted, own)
        rank = self._processes.process_index
        try:
            random = SavedGenerators(folder, checkpoint.manifest, self._processes.run)
            problems += [f"rank {rank}: {line}" for line in random.problems]
        except (CheckpointError, LookupError, TypeError, ValueError) as error:
            problems.append(f"the generators of rank {rank} are missing or damaged: {type(error).__name__}: {error}")
        about = f"the checkpoint {folder} does not fit, and nothing was changed:"
        self._consensus.require("load_state: fits", about, problems)
        trackers = checkpoint.manifest.about.get("trackers", {})
        problems = problems_of(lambda: self._tracking.loaded(folder, trackers, resuming=resuming), "trackers: ")
        if trackers:
            about = f"the checkpoint {folder} was not loaded, as trackers cannot go on:"
            self._consensus.require("load_state: trackers", about, problems)
        left = self._hooked_models(folder, models, own)
        self._put(checkpoint, wanted, {name: model for name, model in own.items() if name in left})

    def _apply_order(self, checkpoint: LoadedCheckpoint) -> None:
        """Restore random numbers, and let loaders that resume before a window draw their order anew."""
        SavedGenerators(checkpoint.folder, checkpoint.manifest, self._processes.run).restore(self._consensus)
        try:
            first = decode(checkpoint.manifest.state_of_rank(checkpoint.folder, 0))["generators"]["torch"]
        except (CheckpointError, LookupError, TypeError, ValueError):
            return
        for item in checkpoint.without_absent(self._registry.items()):
            state = checkpoint.state(item) if item.kind == "DataLoader" else {}
            then = state.get("now", {}).get("default") if state.get("begun") else None
            if isinstance(then, torch.Tensor) and not torch.equal(then, first):
                item.load(state)

    def _put(self, checkpoint: LoadedCheckpoint, wanted: list[StatefulItem], models: dict[str, nn.Module]) -> None:
        """Load everything, or give all what they had if one object refuses after all."""
        sure = {name: model for name, model in models.items() if cannot_refuse(model)}
        unsure = {name: model for name, model in models.items() if name not in sure}
        problems, put_back = put(checkpoint, self._registry, wanted, unsure)
        about = f"{checkpoint.folder} could not be loaded, and everything has its old state:"
        self._consensus.require("load_state: put", about, problems, put_back)
        about = f"{checkpoint.folder} was loaded in part only; start anew, or load another:"
        self._consensus.require("load_state: weights", about, put_weights(checkpoint, sure))
        for optimizer in self._registry.preparer.optimizers:
            optimizer.discard_gradients()
        absent = [item.name for item in self._registry.items() if item.name in checkpoint.absent]
        if absent:
            self._consensus.warn_once(
                f"the main process saved without the others, and the checkpoint lacks {', '.join(absent)}: its epoch"
                " begins anew"
            )
        threads = checkpoint.manifest.about.get("threads")
        if threads != torch.get_num_threads():
            self._consensus.warn_once(
                f"the number of threads of each process is {torch.get_num_threads()} now, and was {threads} when the"
                " checkpoint was taken: sums are rounded otherwise"
            )

    def _hooked_models(self, folder: Path, models: dict[str, nn.Module], saved: dict[str, nn.Module]) -> set[str]:
        """Return the models that no hook has taken upon itself, on every process if there are hooks."""
        if not self._registry.load_hooks:
            return set(models)
        left = list(models.values())

        def call() -> None:
            for hook in list(self._registry.load_hooks.values()):
                hook(left, str(folder))

        problems = problems_of(call, "a hook of load_state failed: ")
        names = {name for name, model in models.items() if any(model is other for other in left)}
        problems += [
            f"{name} is not in the checkpoint, and no hook has taken it out of its models"
            for name in sorted(names - set(saved))
        ]
        self._consensus.require("load_state: hooks", f"the checkpoint {folder} could not be loaded:", problems)
        return names
