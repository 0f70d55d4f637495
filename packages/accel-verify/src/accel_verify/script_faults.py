"""Find faults of a script that both runs have, by the calls that it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@final
class ScriptFaults:
    """The calls of a script that no correct script makes, each with the first step that has it."""

    def __init__(self) -> None:
        #: the faults, in words, with the first step of each
        self.found: dict[str, int] = {}
        #: the gradients with which an optimizer has stepped, until they are cleared
        self._spent: dict[Optimizer, list[torch.Tensor]] = {}
        #: how often schedules have advanced since their optimizers stepped; those of optimizers that never did are not
        #: here, as they may catch up
        self._advanced: dict[LRScheduler, int] = {}
        self._stepped: set[Optimizer] = set()

    def before_backward(self) -> None:
        """Note the optimizers whose gradients the script has cleared by other means than `zero_grad`."""
        for optimizer in [optimizer for optimizer in self._spent if not self._left(optimizer)]:
            del self._spent[optimizer]

    def before_step(self, optimizer: Optimizer, models: Iterable[nn.Module], step: int) -> None:
        """Check the gradients, and the models that have them.

        Args:
            optimizer: The optimizer that is about to step.
            models: The models of the script.
            step: The number of the step.
        """
        if self._left(optimizer):
            self._note("its gradients have those of the step before in them: call optimizer.zero_grad()", step)
        own = {parameter for parameter in held_parameters(optimizer) if parameter.grad is not None}
        for model in models:
            if not model.training and not own.isdisjoint(model.parameters()) and _depends_on_mode(model):
                name = f"{type(model).__name__}, which has dropout or batch norms,"
                self._note(f"{name} is trained in eval mode: call model.train()", step)

    def after_step(self, optimizer: Optimizer) -> None:
        """Note the gradients as used."""
        self._stepped.add(optimizer)
        gradients = [parameter.grad for parameter in held_parameters(optimizer)]
        self._spent[optimizer] = [gradient for gradient in gradients if gradient is not None]
        for schedule in [schedule for schedule in self._advanced if schedule.optimizer is optimizer]:
            del self._advanced[schedule]

    def cleared(self, optimizer: Optimizer) -> None:
        """Note that the gradients are gone."""
        self._spent.pop(optimizer, None)

    def advanced(self, schedule: LRScheduler, step: int) -> None:
        """Count a call of `step` of a schedule without arguments, after the step of this number."""
        if schedule.optimizer in self._stepped:
            self._advanced[schedule] = self._advanced.get(schedule, 0) + 1
            if self._advanced[schedule] > 1:
                name = type(schedule).__name__
                self._note(f"{name}.step() was called more than once after it: call it once for each step", step)

    def _left(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has gradients with which it has stepped already."""
        spent = {id(gradient) for gradient in self._spent.get(optimizer, [])}
        return any(
            id(parameter.grad) in spent and bool(parameter.grad.to_dense().any())
            for parameter in held_parameters(optimizer)
            if parameter.grad is not None
        )

    def _note(self, fault: str, step: int) -> None:
        self.found.setdefault(fault, step)


def _depends_on_mode(model: nn.Module) -> bool:
    """Return whether a model has dropout, as a module or as a number that its own code uses, or batch norms."""
    return any(
        isinstance(module, _BatchNorm)
        or any(
            isinstance(value, float) and value > 0 and (name == "p" or "drop" in name)
            for name, value in vars(module).items()
        )
        for module in model.modules()
    )


def held_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
