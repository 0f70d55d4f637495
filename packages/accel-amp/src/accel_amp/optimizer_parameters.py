"""Collect the parameters of an optimizer."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
