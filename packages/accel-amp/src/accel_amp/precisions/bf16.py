"""Train in bfloat16 under autocast, with float32 parameters."""

from typing import ClassVar, final

import torch

from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions._base import Precision


@final
class Bf16(Precision):
    """The precision bfloat16, which has the range of float32 and needs no loss scaling."""

    name: ClassVar[str] = "bf16"
    policy: ClassVar[PrecisionPolicy] = PrecisionPolicy(compute=torch.bfloat16, output=torch.float32)

    def missing(self, device_kind: str) -> str | None:
        """Return a reason on a GPU that emulates bfloat16, which is far slower than float32."""
        if device_kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return "this GPU has no bfloat16, and emulates it slowly; use fp16"
        return None


PRECISION = Bf16
