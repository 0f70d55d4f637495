"""Loading a checkpoint: verified and compared before anything is changed."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, decode, read_manifest, recover, verify
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.retention import list_checkpoints
from torch import nn

from accel.checkpoint import rng_state
from accel.checkpoint.apply import cannot_refuse, put, put_weights
from accel.checkpoint.io import LoadedCheckpoint, item_problems
from accel.checkpoint.registry import CheckpointRegistry, by_rank
from accel.checkpoint.stateful_item import StatefulItem
from accel.compat.accelerate_checkpoint import AccelerateCheckpoint, is_accelerates

logger = logging.getLogger("accel")


class Resuming(CheckpointRegistry):
    """What a script goes on from."""

    def load_state(
        self,
        input_dir: str | Path | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        map_location: str | None = None,
    ) -> Path:
        """The folder of the checkpoint that everything goes on from; more or fewer processes may have written it.

        Without `input_dir` it is the newest whole one of the project. Its files are verified, and compared with what
        was prepared and registered, before anything is changed. State goes to where the objects are, whatever
        `map_location`.

        Raises: CheckpointError, on every process, that lists all that stands against it; TypeError for a map_location
        that is none.
        Collective: every process must call.
        """
        place = (load_kwargs or {}).get("map_location", map_location)
        if place not in (None, "cpu", "on_device"):
            raise TypeError(f'map_location={place!r}: expected None, "cpu" or "on_device"')
        self.wait_for_checkpoint()
        chosen = self._chosen(input_dir)
        if not chosen:
            folder = self.project_configuration.checkpoints
            raise CheckpointError(f"there is no whole checkpoint in {folder}; give load_state the path of one")
        if input_dir is not None and any(self._tell("load_state: format", self._is_foreign(chosen[0]))):
            self._take_over(chosen[0])
            return chosen[0]
        return self._first_whole(chosen)

    def resume(self) -> Path | None:
        """The newest checkpoint of the project, from which everything goes on; None where there is none yet.

        Raises: ValueError without a project_dir; CheckpointError as `load_state`.
        Collective: every process must call.
        """
        self.wait_for_checkpoint()
        self._agree("resume: where", "no checkpoint could be written here:", self._unusable())
        chosen = self._chosen(None)
        return self._first_whole(chosen) if chosen else None

    def _unusable(self) -> list[str]:
        """Why nothing can be written where the checkpoints of the project are to be: better now than at the first."""
        folder = self.project_configuration.checkpoints.absolute()
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not there.is_dir():
            return [f"{there} is a file, and no folder"]
        return [] if os.access(there, os.W_OK | os.X_OK) else [f"{there} may not be written to"]

    def _first_whole(self, chosen: list[Path]) -> Path:
        """The first of several checkpoints that is not damaged, loaded.

        Collective: every process must call.
        """
        for place, folder in enumerate(chosen, start=1):
            problems, found = self._verified(folder)
            if found is not None:
                self._apply(folder, found)
                return folder
            if place < len(chosen) and self.is_main_process:
                logger.warning(
                    "the checkpoint %s is damaged, and the one before is loaded:\n%s", folder, "\n".join(problems)
                )
        raise CheckpointError("\n".join([f"the checkpoint {folder} cannot be loaded:", *problems]))

    def _chosen(self, input_dir: str | Path | None) -> list[Path]:
        """The folder that was asked for, or all of the project, the newest first; as the main process finds them.

        Collective: every process must call.
        """
        chosen, problems = list[str](), list[str]()
        try:
            if input_dir is not None:
                folder = Path(input_dir).absolute()
                if self.is_local_main_process:
                    recover(folder)
                chosen = [str(folder)]
            else:
                folder = self.project_configuration.checkpoints
                chosen = [str(one.absolute()) for _, one in reversed(list_checkpoints(folder))]
        except (ValueError, OSError) as error:
            problems.append(str(error))
        told = self._tell("load_state: where", {"chosen": chosen, "problems": problems})
        if told[0]["problems"]:
            raise CheckpointError("; ".join(told[0]["problems"]))
        return [Path(one) for one in told[0]["chosen"]]

    def _is_foreign(self, folder: Path) -> bool:
        return not (folder / MANIFEST).exists() and is_accelerates(folder)

    def _take_over(self, folder: Path) -> None:
        """Collective: every process must call."""
        found = AccelerateCheckpoint(folder, self._models(), self._preparer, self.scaler, list(self._objects.values()))
        self._agree("load_state: fits", f"{folder} cannot be gone on from, and nothing was changed:", found.problems)
        found.load()
        self._begin_anew()
        self._say_once(found.left)

    def _begin_anew(self) -> None:
        self.components.accumulation.reset()
        for optimizer in self._preparer.optimizers:
            optimizer.discard_gradients()

    def _verified(self, folder: Path) -> tuple[list[str], LoadedCheckpoint | None]:
        """What is wrong with the files of a checkpoint; and what is in it, where nothing is.

        Collective: every process must call; those of a machine share the reading.
        """
        problems, manifest, digest, read = list[str](), None, "", dict[str, Any]()
        try:
            if not folder.is_dir():
                raise CheckpointError(f"{folder} is no folder")
            inside = [*list_checkpoints(folder), *list_checkpoints(folder / "checkpoints")]
            if inside and not (folder / MANIFEST).exists():
                raise CheckpointError(f"{folder} is no checkpoint, but has some in it: give one, {inside[-1][1]}")
            manifest = read_manifest(folder)
            names = sorted(manifest.files, key=lambda name: -manifest.files[name].size if manifest else 0)
            local = self.run.topology
            states = {one["file"] for one in manifest.items.values() if isinstance(one.get("file"), str)}
            result = verify(folder, manifest, names[local.local_rank :: local.local_world_size], keep=states)
            problems, read = result.problems, result.tensors
            digest = hashlib.sha256(manifest.as_bytes()).hexdigest()
        except (CheckpointError, OSError) as error:
            problems = [str(error)]
        except Exception as error:  # noqa: BLE001 - no memory, say: all processes are to hear of it, and none to wait
            problems = [f"{folder}: {type(error).__name__}: {error}"]
        told = self._tell("load_state: files", {"problems": problems, "digest": digest})
        lines = by_rank([one["problems"] for one in told])
        if not lines and len({one["digest"] for one in told}) > 1:
            lines = [
                f"  processes find different checkpoints at {folder}: their machines share no disk, and one lost some"
            ]
        return lines, None if lines or manifest is None else LoadedCheckpoint(folder, manifest, read)

    def _apply(self, folder: Path, found: LoadedCheckpoint) -> None:
        """Collective: every process must call."""
        models = self._models()
        # those that are not in it are the hooks' to load
        own = {name: one for name, one in models.items() if name in found.manifest.items or not self._load_hooks}
        wanted = self._items()
        problems = item_problems(found, wanted, own)
        states, rank = found.manifest.ranks, self.process_index
        mine: dict[str, Any] | None = None
        same = len(states) == self.num_processes
        try:
            mine = decode(states[rank if same else 0])["generators"]
            problems += [f"rank {rank}: {one}" for one in rng_state.problems(mine, self.run.device)]
        except (CheckpointError, LookupError, TypeError) as error:
            problems.append(f"the generators of rank {rank} are missing or damaged: {type(error).__name__}: {error}")
        self._agree("load_state: fits", f"the checkpoint {folder} does not fit, and nothing was changed:", problems)
        left = self._hooked_models(folder, models, own)
        self._put(found, wanted, {name: one for name, one in own.items() if name in left})
        if mine is not None and rng_state.lacks_device(mine, self.run.device):
            self._say_once(
                f"the checkpoint was not taken on {self.run.device.kind}: random numbers of that device begin anew,"
                " from the others'"
            )
        if same and mine is not None:
            rng_state.restore(mine, self.run.device)
        elif mine is not None:
            if self.is_main_process:
                logger.warning(
                    "the checkpoint was taken by %d processes, and %d go on: the first one's random numbers go on, and"
                    " those of the others begin anew, from them and the rank",
                    len(states),
                    self.num_processes,
                )
            if rank == 0:  # which draws the order of samples, as it did
                rng_state.restore(mine, self.run.device)
            else:
                rng_state.derive(mine, rank)
        self._roll_back(found, wanted)
        if self.num_processes > 2 and same:
            self._say_once(
                "from three processes on DistributedDataParallel adds gradients up in another order in its first step"
                " after a start: training goes on with the same samples, and with sums that are rounded otherwise"
            )
        self._newest = folder, found.manifest

    def _roll_back(self, found: LoadedCheckpoint, wanted: list[StatefulItem]) -> None:
        """Where a loader goes on before the window that was cut off, its order is drawn as it was then.

        Collective: every process must call.
        """
        try:
            first = decode(found.manifest.ranks[0])["generators"]["torch"]
        except (CheckpointError, LookupError, TypeError):
            return
        for item in wanted:
            state = found.state(item.name) if item.kind == "DataLoader" else {}
            then = state.get("now", {}).get("default") if state.get("begun") else None
            if isinstance(then, torch.Tensor) and not torch.equal(then, first):
                item.load(state)

    def _put(self, found: LoadedCheckpoint, wanted: list[StatefulItem], models: dict[str, nn.Module]) -> None:
        """Loads everything; where one thing refuses after all, those before it get back what they had.

        Collective: every process must call.
        """
        sure = {name: one for name, one in models.items() if cannot_refuse(one)}
        problems, put_back = put(found, wanted, {name: one for name, one in models.items() if name not in sure})
        about = f"{found.folder} could not be loaded, and everything has its old state:"
        self._agree("load_state: put", about, problems, put_back)
        about = f"{found.folder} was loaded in part only; start anew, or load another:"
        self._agree("load_state: weights", about, put_weights(found, sure))
        for optimizer in self._preparer.optimizers:
            optimizer.discard_gradients()
        threads = found.manifest.about.get("threads")
        if threads != torch.get_num_threads():
            self._say_once(
                f"the checkpoint was taken with {threads} threads a process, and {torch.get_num_threads()} go on: sums"
                " are rounded otherwise"
            )

    def _hooked_models(self, folder: Path, models: dict[str, nn.Module], saved: dict[str, nn.Module]) -> set[str]:
        """The models that no hook has taken upon itself.

        Collective: every process must call, where there are hooks.
        """
        if not self._load_hooks:
            return set(models)
        left, problems = list(models.values()), list[str]()
        try:
            for hook in list(self._load_hooks.values()):
                hook(left, str(folder))
        except Exception as error:  # noqa: BLE001 - whatever the user's own code raises is told to all
            problems.append(f"a hook of load_state failed: {type(error).__name__}: {error}")
        names = {name for name, one in models.items() if any(one is other for other in left)}
        problems += [
            f"{name} is not in the checkpoint, and no hook has taken it out of its models"
            for name in sorted(names - set(saved))
        ]
        self._agree("load_state: hooks", f"the checkpoint {folder} could not be loaded:", problems)
        return names

    @abstractmethod
    def wait_for_checkpoint(self) -> None:
        """Returns when nothing is being written. Collective."""
