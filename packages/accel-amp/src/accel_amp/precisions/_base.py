"""The base class of precisions."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from accel_amp.policy import PrecisionPolicy


class Precision(ABC):
    """The dtypes in which a model computes, and whether the loss is scaled."""

    name: ClassVar[str]
    policy: ClassVar[PrecisionPolicy]

    @abstractmethod
    def missing(self, device_kind: str) -> str | None:
        """Return why this precision cannot be used on a kind of device, or None.

        Args:
            device_kind: The kind, such as "cuda".
        """

    def converted(self, model: nn.Module) -> nn.Module:
        """Return `model` itself, with the layers of this precision if it has layers of its own."""
        return model
