"""What accel asks of a means of exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Reduction = Literal["sum", "mean", "max", "min"]


class Transport(ABC):
    """Exchange between the processes of one group. Collective: every rank of the group must call."""

    rank: int
    size: int

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order.

        Shape: (n, ...) on each rank -> (size * n, ...) on all.
        Collective: every rank of the group must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank: the ranks' `x` combined element by element.

        Shape: unchanged.
        Collective: every rank of the group must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """`x` of rank `source`; other ranks give a tensor of the same shape and dtype, which is overwritten.

        Collective: every rank of the group must call.
        """

    @abstractmethod
    def all_gather_objects(self, value: T) -> list[T]:
        """Every rank's `value`, in rank order.

        Collective: every rank of the group must call.
        """

    @abstractmethod
    def broadcast_object(self, value: T, source: int) -> T:
        """The `value` of rank `source`.

        Collective: every rank of the group must call.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called.

        Collective: every rank of the group must call.
        """
