"""The base of engines: libraries that make backwards and optimizer steps themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer


class Engine(ABC):
    """Takes backwards and optimizer steps in torch's place, and scales losses and gradients by itself.

    It makes the steps of prepared optimizers, as `accel_amp.StepMaker` says.
    """

    #: calls of the facade that it cannot serve, with what to do instead
    refusals: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def meet(self, objects: Sequence[Any]) -> None:
        """Is told of all that a script prepares together, before the strategy sets up the model of them."""

    @abstractmethod
    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer whose groups and state this optimizer has from now on."""

    @abstractmethod
    def state_of(self, optimizer: Optimizer) -> Any:
        """What has the state of an optimizer whole, as torch's optimizers have it; the optimizer, if it does.

        Collective: every rank must call its `state_dict` and `load_state_dict`.
        """

    @abstractmethod
    def scheduler(self, scheduler: Any) -> Any:
        """The schedule that follows the optimizer of this scheduler from now on."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, *, due: bool, **kwargs: Any) -> None:
        """Adds the gradients of a loss; `due` says if the optimizer steps next. Collective: every rank must call."""

    @abstractmethod
    def rescale(self, factor: torch.Tensor | float) -> None:
        """Multiplies the gradients that have gathered in the window so far."""

    @abstractmethod
    def register(self, optimizer: Optimizer) -> None:
        """Is told of an optimizer before its first step."""

    @abstractmethod
    def step(self, optimizer: Optimizer, closure: Any = None) -> bool:
        """Steps; False if gradients had overflowed and the step was skipped. Collective: every rank must call."""

    @abstractmethod
    def discard(self, optimizer: Optimizer) -> bool:
        """Throws gradients away that had no step; True if nobody else has to clear them."""
