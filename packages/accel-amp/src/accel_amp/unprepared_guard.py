"""Raise at steps with gradients that are not ready for a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from accel_state import AccumulationState
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from accel_amp.optimizer_parameters import parameters_of
from accel_amp.scaler import LossScaler
from accel_amp.step_hook import call_before_steps


@final
class UnpreparedGuard:
    """A guard that raises a RuntimeError if an optimizer that was not prepared steps parameters of prepared models.

    Within a window, the gradients of these parameters are those of a part of the window and of one process. In fp16
    they are multiplied by the scale, too.

    Args:
        accumulation: The window of micro-batches of the script.
        scaler: The scaler of the loss, in fp16.
    """

    def __init__(self, accumulation: AccumulationState, scaler: LossScaler | None = None) -> None:
        self.accumulation = accumulation
        self.scaler = scaler
        self._guarded: set[int] = set()
        self._hook: RemovableHandle | None = None

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Add parameters to the guarded ones."""
        self._guarded.update(map(id, parameters))
        if self.scaler is not None or self.accumulation.every > 1:
            self.arm()

    def arm(self) -> None:
        """Check every later step of any optimizer in this process.

        Call it once the loss is scaled or gradients accumulate. Until then no step can be early. A second call does
        nothing.
        """
        if self._hook is None:
            self._hook = call_before_steps(self._refuse)

    def release(self) -> None:
        """Forget all parameters, and stop checking steps.

        Other objects may get the ids of parameters that are gone.
        """
        self._guarded.clear()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def owns(self, optimizer: Optimizer) -> bool:
        """Return whether the optimizer has a guarded parameter."""
        return not self._guarded.isdisjoint(map(id, parameters_of(optimizer)))

    def _refuse(self, optimizer: Optimizer) -> None:
        accumulation, scaler = self.accumulation, self.scaler
        in_time = accumulation.due or not accumulation.waiting
        if (in_time and (scaler is None or scaler.stepping)) or not self.owns(optimizer):
            return
        name = type(optimizer).__name__
        if scaler is None:
            raise RuntimeError(
                f"this {name} is not prepared, and would step at micro-batch {accumulation.position} of"
                f" {accumulation.every}, with gradients that processes have not shared yet; pass it to"
                " accelerator.prepare and step with what that returns, or step only where accelerator.sync_gradients is"
                " true (free_memory() ends a window that was left)"
            )
        raise RuntimeError(
            f"this {name} is not prepared, and would step with gradients that fp16 has multiplied by"
            f" {scaler.grad_scaler.get_scale():g}; pass it to accelerator.prepare and step with what that returns"
        )
