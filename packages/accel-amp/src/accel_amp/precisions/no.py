"""Compute every operation in the dtype of its inputs."""

from typing import ClassVar, final

from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions._base import Precision


@final
class No(Precision):
    """The precision of the model itself, without mixed precision."""

    name: ClassVar[str] = "no"
    policy: ClassVar[PrecisionPolicy] = PrecisionPolicy()

    def missing(self, device_kind: str) -> str | None:
        """Return None, as this precision can be used on every device."""
        return None


PRECISION = No
