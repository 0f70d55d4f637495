"""The base of precisions."""

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
        """Why it cannot run on this kind of device, in words; None if it can."""

    def converted(self, model: nn.Module) -> nn.Module:
        """`model` itself, with the layers of this precision if it has layers of its own."""
        return model
