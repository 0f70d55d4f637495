"""What a precision says of itself."""

from abc import ABC, abstractmethod
from typing import ClassVar

from accel_amp.policy import PrecisionPolicy


class Precision(ABC):
    """Numbers: in which dtypes a model computes, and whether the loss is scaled."""

    name: ClassVar[str]
    policy: ClassVar[PrecisionPolicy]

    @abstractmethod
    def missing(self, device_kind: str) -> str | None:
        """Why it cannot run on this kind of device, in words; None when it can."""
