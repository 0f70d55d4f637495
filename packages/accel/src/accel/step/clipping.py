"""The gradients of prepared optimizers: unscaled, and clipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
from accel_amp import AcceleratedOptimizer, LossScaler
from accel_amp.optimizer_parameters import parameters_of
from accel_parallel.clip import with_gradients
from torch import nn
from torch.optim import Optimizer

from accel.preparation import Preparer


@final
class GradientClipping:
    """The calls by which a script measures, clips and unscales gradients, when a step is due."""

    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer
        self._components = preparer.components
        self._accumulation = preparer.components.accumulation
        self._steps = preparer.components.steps

    def unscale(self, optimizer: AcceleratedOptimizer | Sequence[AcceleratedOptimizer] | None = None) -> None:
        """Divide gradients by the scale of the loss, once a step.

        Nothing happens but in fp16, and within a window.

        Args:
            optimizer: The optimizers whose gradients are meant; None for all.
        """
        scaler = self._components.scaler
        if scaler is None or not self._accumulation.due:
            return
        chosen = self._preparer.optimizers if optimizer is None else optimizer
        for prepared in [chosen] if isinstance(chosen, AcceleratedOptimizer) else chosen:
            scaler.unscale(prepared.optimizer)

    def clip_norm(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, kind: float = 2.0
    ) -> torch.Tensor:
        """Scale the unscaled gradients down if their norm exceeds a limit, and return the norm.

        Within a window nothing is clipped.

        Args:
            parameters: The parameters with the gradients.
            max_norm: The limit.
            kind: The exponent of the norm.

        Raises:
            ValueError: A step is due, and there are no gradients.
        """
        chosen, scaler = _listed(parameters, "clip_grad_norm_"), self._components.scaler
        if self._accumulation.due:
            if scaler is not None:
                scaler.share_overflow(self._unscale(chosen, scaler))
            return self._steps.clip_norm(chosen, max_norm, kind=kind)
        gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
        norm = self._steps.total_norm(gradients, kind)
        return norm if scaler is None else scaler.unscaled(norm)

    def clip_value(self, parameters: torch.Tensor | Iterable[torch.Tensor], limit: float) -> None:
        """Cut each number of the unscaled gradients to the interval from `-limit` to `limit`.

        Within a window nothing is clipped.

        Raises:
            ValueError: A step is due, and there are no gradients; or the strategy cannot clip so.
        """
        self._components.refuse("clip_grad_value_")
        if not self._accumulation.due:
            return
        chosen = with_gradients(_listed(parameters, "clip_grad_value_"), "clip_grad_value_")
        if self._components.scaler is not None:
            self._unscale(chosen, self._components.scaler)
        self._steps.settle_gradients()
        nn.utils.clip_grad_value_(chosen, limit)

    def _unscale(self, parameters: list[torch.Tensor], scaler: LossScaler) -> list[Optimizer]:
        """Divide the gradients of optimizers that have one of the parameters: others may wait for their backward."""
        wanted = set(map(id, parameters))
        chosen = [
            optimizer.optimizer
            for optimizer in self._preparer.optimizers
            if any(id(held) in wanted for held in parameters_of(optimizer))
        ]
        for optimizer in chosen:
            scaler.unscale(optimizer)
        return chosen


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor], name: str) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    if isinstance(parameters, nn.Module):
        raise TypeError(
            f"{name} takes parameters, found the model {type(parameters).__name__}; pass model.parameters()"
        )
    return list(parameters)
