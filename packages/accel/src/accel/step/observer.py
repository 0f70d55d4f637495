"""A look into the step of every Accelerator, for tools that record it: `accel verify` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from accel.accelerator import Accelerator


class StepObserver(Protocol):
    """Is told what scripts prepare and differentiate, if `Accelerator.observer` is one when they make an Accelerator.

    What an optimizer was given, torch's own hooks tell (`register_step_pre_hook` of `AcceleratedOptimizer.optimizer`),
    and when a window closed, `AcceleratedOptimizer.on_step`. What an observer raises goes on to the script.
    """

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Is called once for each model, optimizer, loader and scheduler that `prepare` has made ready."""
        ...

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Is called with what `backward` was called with, before it begins."""
        ...
