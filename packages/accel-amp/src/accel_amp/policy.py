"""The dtypes of a computation."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """The dtypes of operations and outputs, None to leave them. `cache` keeps the parameters that autocast has cast."""

    compute: torch.dtype | None = None
    output: torch.dtype | None = None
    scale_loss: bool = False
    cache: bool = True
