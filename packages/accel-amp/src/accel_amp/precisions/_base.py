"""What a precision says of itself."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from accel_amp.policy import PrecisionPolicy


class Precision(ABC):
    """Numbers: in which dtypes a model computes, and whether the loss is scaled."""

    name: ClassVar[str]
    policy: ClassVar[PrecisionPolicy]

    @abstractmethod
    def missing(self, device_kind: str) -> str | None:
        """Why it cannot run on this kind of device, in words; None when it can."""

    def converted(self, model: nn.Module) -> nn.Module:
        """`model` itself, with layers of this precision where it has some."""
        return model
