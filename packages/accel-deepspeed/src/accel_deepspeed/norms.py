"""Compute norms of gradients that are in DeepSpeed's buffers, or in the parameters of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm


def norm_of(gradients: Sequence[torch.Tensor], kind: float) -> torch.Tensor:
    """Return the norm of gradients, or NaN if they are in DeepSpeed's buffers, as before the end of a window."""
    return get_total_norm(gradients, kind) if gradients else torch.full((), math.nan, device="cpu")


def multiply(model: nn.Module, factor: float) -> None:
    """Scale all gradients that are in the parameters."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def scaled_norm(optimizer: Any, stage: int) -> torch.Tensor:
    """Return the norm of reduced gradients, which a loss scale has multiplied.

    Collective:
        Every rank must call.
    """
    if stage < 3:
        norm: torch.Tensor = optimizer.scaled_global_norm()
        return norm
    norms: list[torch.Tensor] = optimizer._get_norm_groups()
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return torch.where(torch.stack(norms).amin() < 0, torch.full_like(whole, -1.0), whole)
