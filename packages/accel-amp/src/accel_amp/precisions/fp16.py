"""Train in float16 under autocast, with float32 parameters and a scaled loss."""

from typing import ClassVar, final

import torch

from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions._base import Precision


@final
class Fp16(Precision):
    """The precision float16, whose narrow range needs a scaled loss.

    Steps with gradients that overflowed are skipped.
    """

    name: ClassVar[str] = "fp16"
    policy: ClassVar[PrecisionPolicy] = PrecisionPolicy(compute=torch.float16, output=torch.float32, scale_loss=True)

    def missing(self, device_kind: str) -> str | None:
        """Return a reason on XLA, which has no float16 training."""
        return "XLA trains in bf16; use bf16" if device_kind == "xla" else None


PRECISION = Fp16
