"""A look into the step of every Accelerator, for tools that record it, as `accel verify` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from accel.accelerator import Accelerator


class StepObserver(Protocol):
    """An object that is told what scripts prepare and differentiate.

    Set `Accelerator.observer` before a script makes an Accelerator. torch's own hooks tell what an optimizer was given
    (`register_step_pre_hook` of `AcceleratedOptimizer.optimizer`), and `AcceleratedOptimizer.on_step` tells when a
    window has closed. What an observer raises is raised in the script.
    """

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        """Take note of a model, optimizer, loader or scheduler that was made ready."""
        ...

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        """Take note of the arguments of a `backward`, before it begins."""
        ...
