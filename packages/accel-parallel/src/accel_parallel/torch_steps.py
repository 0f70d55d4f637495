"""Make gradients and optimizer steps as torch does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from accel_amp import AcceleratedOptimizer, LossScaler
from accel_comm import Transport
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from accel_parallel.clip import with_gradients
from accel_parallel.missed_gradients import MissedGradients
from accel_parallel.steps import Steps


@final
class TorchSteps(Steps):
    """The gradients and steps of parameters that every rank holds whole, made by torch."""

    def __init__(self) -> None:
        #: averages gradients that the exchange of a model misses; a strategy that exchanges sets it
        self.missed: MissedGradients | None = None
        self._keeps = False

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Exchange no gradients of backwards in the block, where no container of a model knows that they stay."""
        before, self._keeps = self._keeps, True
        try:
            yield
        finally:
            self._keeps = before

    def meet(self, objects: Sequence[Any], models: Sequence[nn.Module]) -> None:
        """Do nothing: torch takes all of them."""

    def optimizer(
        self, optimizer: Optimizer, models: Sequence[nn.Module], make: Callable[..., AcceleratedOptimizer]
    ) -> AcceleratedOptimizer:
        """Return the optimizer, prepared.

        Args:
            optimizer: The optimizer of the script.
            models: The prepared models.
            make: `AcceleratedOptimizer`, with its other arguments.
        """
        return make(optimizer)

    def scheduler(self, scheduler: Any) -> Any:
        """Return the schedule itself."""
        return scheduler

    def loss_scaler(self, make: Callable[..., LossScaler], transport: Transport) -> LossScaler | None:
        """Return a scaler of this rank alone: gradients overflow on all ranks alike.

        Collective:
            No rank waits for others.
        """
        return make()

    def backward(
        self,
        loss: torch.Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        *,
        due: bool,
        **kwargs: Any,
    ) -> None:
        """Call torch's backward, and average gradients that nothing else exchanges if a step is due.

        Args:
            loss: The loss, scaled already.
            models: Prepared models.
            optimizers: Prepared optimizers.
            due: Whether gradients are exchanged, as an optimizer step comes next.
            kwargs: Arguments of torch's `backward`.

        Collective:
            Every rank must call if a step is due.
        """
        if self.missed is not None:
            self.missed.losses += 1
            if due and not self._keeps:
                self.missed.backward(loss, models, optimizers, **kwargs)
                return
        loss.backward(**kwargs)  # type: ignore[no-untyped-call] # of torch

    def adopt(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> None:
        """Make parameters equal on all ranks that no exchange of prepared models covers.

        Collective:
            Every rank must call.
        """
        if self.missed is not None and models:
            self.missed.adopt(models, parameters)

    def forget(self) -> None:
        """Do nothing: what averages missed gradients knows parameters by weak references.

        Collective:
            No rank waits for others.
        """

    def settle_gradients(self) -> None:
        """Do nothing: gradients are complete.

        Collective:
            No rank waits for others.
        """

    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """Return the norm, by torch's own function.

        Collective:
            No rank waits for others.
        """
        return get_total_norm(gradients, kind)

    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """Return the norm, and clip, by torch's own function.

        Args:
            parameters: The parameters with the gradients.
            max_norm: The limit.
            kind: The exponent of the norm.

        Raises:
            ValueError: There are no gradients.

        Collective:
            No rank waits for others.
        """
        return clip_grad_norm_(with_gradients(parameters, "clip_grad_norm_"), max_norm, kind)
