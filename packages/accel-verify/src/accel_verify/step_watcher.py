"""Record the steps of optimizers by torch's own hooks, which run when and only when an optimizer steps."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.optim import Optimizer

from accel_verify.step_record import AFTER, BEFORE, GRADIENT, Settings, StepRecord


class StepLimitReached(BaseException):
    """The signal that a script has made all steps that were asked for.

    It is no Exception, so that the handlers of a script do not catch it.
    """


class StepWatcher(ABC):
    """A watcher that makes a record of each step, and ends the script after the last step.

    Args:
        steps: Number of steps of each optimizer.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        #: the number of steps that were due, and the numbers of the skipped steps
        self.made = 0
        self.skipped: list[int] = []
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []

    @abstractmethod
    def before_step(self, optimizer: Optimizer) -> None:
        """Record parameters and gradients. It is called when the optimizer is about to step."""

    @abstractmethod
    def after_step(self, optimizer: Optimizer) -> None:
        """Record the new parameters. It is called when the optimizer has stepped."""

    @property
    def is_done(self) -> bool:
        """True if the optimizers have made `steps` steps each, on average. Skipped steps do not count."""
        return self.made - len(self.skipped) >= self.steps * max(len(self.optimizers), 1)

    def stop_if_done(self) -> None:
        """Raise StepLimitReached if there are no more steps to make."""
        if self.is_done:
            raise StepLimitReached

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Record the steps of an optimizer from now on."""
        self.optimizers.append(optimizer)
        optimizer.register_step_pre_hook(lambda raw, *_: self.before_step(raw))
        optimizer.register_step_post_hook(lambda raw, *_: self.after_step(raw))

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Note the loss of a micro-batch, and its weight if it has one."""
        self.stop_if_done()
        self._losses.append(loss.detach())
        if weight is not None:
            self._weights.append(float(weight))

    def parameters(self, optimizer: Optimizer) -> dict[str, nn.Parameter]:
        """Return the parameters of an optimizer by their names in the model.

        Names of several models begin with the number of the model.
        """
        names: dict[int, str] = {}
        for number, model in enumerate(self.models):
            prefix = f"model{number}." if len(self.models) > 1 else ""
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), prefix + name)
        held = enumerate(held_parameters(optimizer))
        return {names.get(id(parameter), f"parameter {number}"): parameter for number, parameter in held}

    def settings(self, optimizer: Optimizer) -> Settings:
        """Return the learning rate of each group, and the dtypes of each parameter and of its optimizer state."""
        groups = enumerate(optimizer.param_groups)
        settings: Settings = {f"learning rate of group {number}": float(group["lr"]) for number, group in groups}
        for name, parameter in self.parameters(optimizer).items():
            settings[f"dtype of {name}"] = str(parameter.dtype)
            for key, value in optimizer.state.get(parameter, {}).items():
                # a count of steps may be in another format
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape == parameter.shape:
                    settings[f"dtype of {key} of {name}"] = str(value.dtype)
        return settings

    def begin_record(self, optimizer: Optimizer) -> StepRecord:
        """Return a record of the losses since the last record, the parameters and the gradients."""
        number, losses = self.optimizers.index(optimizer), [float(loss) for loss in self._losses]
        record = StepRecord(number, len(losses), losses, self._weights, self.settings(optimizer))
        for name, parameter in self.parameters(optimizer).items():
            record.tensors[BEFORE.format(name)] = parameter.detach().clone()
            if parameter.grad is not None:
                record.tensors[GRADIENT.format(name)] = parameter.grad.detach().to_dense().clone()
        self._losses, self._weights = [], []
        return record

    def end_record(self, record: StepRecord, optimizer: Optimizer) -> None:
        """Add the parameters after the step to a record."""
        record.settings |= self.settings(optimizer)
        for name, parameter in self.parameters(optimizer).items():
            record.tensors[AFTER.format(name)] = parameter.detach().clone()
        self.made += 1


def held_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
