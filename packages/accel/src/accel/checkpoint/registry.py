"""What of an Accelerator is saved: models, and everything else that has a state, each under its name."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel_checkpoint import CheckpointError, Manifest
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel.checkpoint.optimizer_state import names_of
from accel.checkpoint.stateful_item import StatefulItem, items, key, named_objects
from accel.configuration import ProjectConfiguration
from accel.step.training_step import TrainingStep

logger = logging.getLogger("accel")

SaveHook = Callable[[list[nn.Module], list[dict[str, Any]], str], None]
LoadHook = Callable[[list[nn.Module], str], None]


class CheckpointRegistry(TrainingStep):
    """What of an Accelerator is saved."""

    project_configuration: ProjectConfiguration

    def _prepare_checkpoints(self, project: ProjectConfiguration, project_dir: str | Path | None) -> None:
        if project_dir is not None and project.project_dir is None:
            project.set_directories(project_dir)
        self.project_configuration = project
        self._objects: dict[str, Any] = {}
        # what a RemovableHandle refers to weakly
        self._save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self._load_hooks: OrderedDict[int, LoadHook] = OrderedDict()
        #: the checkpoint that this process wrote or read last
        self._newest: tuple[Path, Manifest] | None = None
        self._said: set[str] = set()

    @property
    def project_dir(self) -> str | Path | None:
        """The folder of the project."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | Path | None:
        """The folder of its logs."""
        return self.project_configuration.logging_dir

    def register_for_checkpointing(self, *objects: Any, **named: Any) -> None:
        """Saves and loads these with everything else, by their `state_dict` and `load_state_dict`.

        Each is saved under a name: the keyword, or that of its class. What is saved is the main process's.

        Raises: ValueError that lists all objects without these methods, and names that are taken.
        """
        self._objects = named_objects(objects, named, self._objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Calls `hook(models, weights, folder)` before a checkpoint is written, on every process.

        What it writes into the folder becomes part of the checkpoint; weights that it takes out of the list are its own
        to write.
        """
        return _kept(self._save_hooks, hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Calls `hook(models, folder)` before a checkpoint is loaded, on every process.

        Models that it takes out of the list are its own to load.
        """
        return _kept(self._load_hooks, hook)

    def _models(self) -> dict[str, nn.Module]:
        return {
            key("model", place): self._preparer.unwrap(one, keep_compile=False)
            for place, one in enumerate(self._preparer.models)
        }

    def _items(self) -> list[StatefulItem]:
        return items(self._preparer, self.components, self._gradients, self._objects, names_of(self._models()))

    def _warn_of_what_is_lost(self) -> None:
        if self.components.accumulation.waiting and not self.components.accumulation.due:
            self._say_once(
                "save_state inside of a window of gradient accumulation: the checkpoint is that of the last optimizer"
                " step, and the micro-batches since will be served again; what they changed in buffers, random numbers"
                " and registered objects stays. Save where accelerator.sync_gradients is true to be exact"
            )
        if self.at_home:
            self._say_once(
                "save_state inside of LocalSGD: each process has a model of its own there, and that of the main process"
                " is saved; save after the block"
            )
        names = names_of(self._models())
        parameters = [
            one for each in self._preparer.optimizers for group in each.param_groups for one in group["params"]
        ]
        lost = sum(id(one) not in names for one in parameters) if not self._objects else 0
        if lost:
            self._say_once(
                f"save_state: {lost} parameters of prepared optimizers are in no prepared model, and are not saved;"
                " register what holds them: register_for_checkpointing(module)"
            )

    def _tell(self, what: str, mine: Any) -> list[Any]:
        """What every process says; as JSON, since nothing is to be unpickled on the way of a checkpoint.

        Collective: every process must call.
        """
        told = self.run.transport.exchange(what, json.dumps(mine).encode())
        return [json.loads(one) for one in told]

    def _agree(self, what: str, about: str, mine: list[str], first: Callable[[], None] = lambda: None) -> None:
        """Raises what any process has to say against it, on all of them, when `first` was called.

        Collective: every process must call.
        """
        lines = by_rank(self._tell(what, mine))
        if lines:
            first()
            raise CheckpointError("\n".join([about, *lines]))

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            if self.is_main_process:
                logger.warning("%s", what)


def by_rank(told: list[list[str]]) -> list[str]:
    """What each rank has to say; what all say, without their names."""
    found: dict[str, list[int]] = {}
    for rank, lines in enumerate(told):
        for line in lines:
            found.setdefault(line, []).append(rank)
    return [
        f"  {line}" if len(ranks) == len(told) else f"  rank {', '.join(map(str, ranks))}: {line}"
        for line, ranks in found.items()
    ]


def _kept(hooks: dict[int, Any], hook: Any) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
