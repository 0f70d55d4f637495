"""What is computed in which dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PrecisionPolicy:
    """What is computed in which dtype; None leaves it as it is. `cache` keeps parameters that autocast has cast."""

    compute: torch.dtype | None = None
    output: torch.dtype | None = None
    scale_loss: bool = False
    cache: bool = True
