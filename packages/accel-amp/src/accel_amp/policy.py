"""The dtypes of a computation."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """The dtypes of operations and outputs.

    Args:
        compute: Dtype of operations under autocast, or None to leave it.
        output: Dtype of outputs, or None to leave it.
        scale_loss: Whether the loss is scaled.
        cache: Whether autocast keeps parameters that it has cast.
    """

    compute: torch.dtype | None = None
    output: torch.dtype | None = None
    scale_loss: bool = False
    cache: bool = True
