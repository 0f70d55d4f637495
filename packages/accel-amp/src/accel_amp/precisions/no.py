"""Every operation in the dtype of its inputs."""

from typing import ClassVar, final

from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions._base import Precision


@final
class No(Precision):
    """No mixed precision."""

    name: ClassVar[str] = "no"
    policy: ClassVar[PrecisionPolicy] = PrecisionPolicy()

    def missing(self, device_kind: str) -> str | None:
        """None: it runs everywhere."""
        return None


PRECISION = No
