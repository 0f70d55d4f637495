"""The content of checkpoints: models, and everything else that has a state, each under its name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, final

from accel_amp.optimizer_parameters import parameters_of
from accel_amp.optimizer_state import names_of
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel.checkpoint.stateful_item import StatefulItem, items, key, named_objects
from accel.preparation import Preparer
from accel.step.training_step import TrainingStep

SaveHook = Callable[[list[nn.Module], list[dict[str, Any]], str], None]
LoadHook = Callable[[list[nn.Module], str], None]


@final
class CheckpointRegistry:
    """The objects that a checkpoint holds, and the hooks of the script."""

    def __init__(self, preparer: Preparer, training: TrainingStep) -> None:
        self.components = preparer.components
        self.preparer = preparer
        self.training = training
        self.objects: dict[str, Any] = {}
        # what a RemovableHandle refers to weakly
        self.save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self.load_hooks: OrderedDict[int, LoadHook] = OrderedDict()

    def register(self, objects: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Add objects under the names of their classes, and others under names of their own.

        Raises:
            ValueError: It lists all objects without a state, and names that are taken.
        """
        self.objects = named_objects(objects, named, self.objects)

    def models(self) -> dict[str, nn.Module]:
        """Return the models that were given to `prepare`, by name."""
        prepared = enumerate(self.preparer.models)
        return {key("model", place): self.preparer.unwrap(model, keep_compile=False) for place, model in prepared}

    def items(self) -> list[StatefulItem]:
        """Return everything else."""
        return items(self.preparer, self.training, self.objects, names_of(self.models()))

    def losses(self) -> list[str]:
        """Return what a checkpoint that is taken now will lack, in words."""
        accumulation, lines = self.components.accumulation, []
        if accumulation.waiting and not accumulation.due:
            lines.append(
                "save_state inside of a window of gradient accumulation: the checkpoint is that of the last optimizer"
                " step, and the micro-batches since will be served again; what they changed in buffers, random numbers"
                " and registered objects stays. Save where accelerator.sync_gradients is true to be exact"
            )
        if self.training.local_only:
            lines.append(
                "save_state inside of LocalSGD: each process has a model of its own there, and that of the main process"
                " is saved; save after the block"
            )
        names = names_of(self.models())
        held = [parameter for optimizer in self.preparer.optimizers for parameter in parameters_of(optimizer.saved)]
        lost = sum(id(parameter) not in names for parameter in held)
        if lost and not self.objects:
            lines.append(
                f"save_state: {lost} parameters of prepared optimizers are in no prepared model, and are not saved;"
                " register what holds them: register_for_checkpointing(module)"
            )
        return lines


def add_hook(hooks: dict[int, Any], hook: Any) -> RemovableHandle:
    """Add a hook, and return what removes it again."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
