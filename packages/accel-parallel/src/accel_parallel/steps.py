"""The base of what a strategy does with gradients and optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from accel_amp import AcceleratedOptimizer, LossScaler
from accel_comm import Transport
from torch import nn
from torch.optim import Optimizer


class Steps(ABC):
    """A maker of gradients and optimizer steps for a strategy. `TorchSteps` has torch make them."""

    #: calls of the facade that cannot be served, with the reason and what to do instead
    refusals: ClassVar[Mapping[str, str]] = {}
    #: a function that multiplies the gradients of a window so far by a number, if they are not in `parameter.grad`
    rescale: Callable[[torch.Tensor | float], None] | None = None
    #: a function that returns a function which gives parts of weights and of their states what they have now, where
    #: states are gathered whole
    remember: Callable[[], Callable[[], None]] | None = None
    #: whether this rank keeps the whole states that it gathers with others, which take the memory of the whole model
    keeps_whole_states: bool = True

    @abstractmethod
    def meet(self, objects: Sequence[Any], models: Sequence[nn.Module]) -> None:
        """Check objects that are prepared together, before any of them is.

        Args:
            objects: All of them, in the order given.
            models: The models among them, and those that were prepared before.

        Raises:
            ValueError: They cannot be trained together.
        """

    @abstractmethod
    def optimizer(
        self, optimizer: Optimizer, models: Sequence[nn.Module], make: Callable[..., AcceleratedOptimizer]
    ) -> AcceleratedOptimizer:
        """Return the prepared optimizer for an optimizer of the script.

        Args:
            optimizer: The optimizer of the script.
            models: The prepared models.
            make: `AcceleratedOptimizer`, with arguments that may be replaced by keywords.

        Raises:
            ValueError: It cannot step the prepared models.
        """

    @abstractmethod
    def scheduler(self, scheduler: Any) -> Any:
        """Return the schedule to follow in place of a schedule of the script, or that itself."""

    @abstractmethod
    def loss_scaler(self, make: Callable[..., LossScaler], transport: Transport) -> LossScaler | None:
        """Return what scales losses in fp16, made by `make`, or None if nothing outside the strategy may.

        Collective:
            No rank waits for others.
        """

    @abstractmethod
    def backward(
        self,
        loss: torch.Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        *,
        due: bool,
        **kwargs: Any,
    ) -> None:
        """Add the gradients of a loss.

        Args:
            loss: The loss, scaled already.
            models: The prepared models.
            optimizers: The prepared optimizers.
            due: Whether gradients travel, as an optimizer step comes next.
            **kwargs: Arguments of torch's `backward`.

        Collective:
            Every rank must call if a step is due.
        """

    @abstractmethod
    def adopt(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> None:
        """Make parameters equal on all ranks that came to an optimizer and are in no exchange of the models.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def forget(self) -> None:
        """Forget all prepared models: what looks after their gradients would keep them in memory.

        Collective:
            No rank waits for others.
        """

    @abstractmethod
    def settle_gradients(self) -> None:
        """Close a window: complete gradients of which this rank has its own share only, after the last backward.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def total_norm(self, gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
        """Return the norm of gradients that this rank holds, or holds parts of.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def clip_norm(self, parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
        """Return the norm of all gradients, the same on every rank, and scale them down to it if they exceed a limit.

        Args:
            parameters: The parameters with the gradients.
            max_norm: The limit.
            kind: The exponent of the norm.

        Raises:
            ValueError: There are no gradients.

        Collective:
            Every rank must call.
        """
