"""The samples of a batch: how many there are, and whether it can be cut between them."""

from __future__ import annotations

from typing import Any

import torch
from accel_ops.tree import leaves


def samples_in(batch: Any) -> int:
    """The length of the first tensor with dims, else that of a list or tuple, else one."""
    for _, leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    return len(batch) if isinstance(batch, list | tuple) else 1


def can_be_cut(batch: Any) -> bool:
    """Whether every leaf is a tensor with an entry for each sample."""
    count = samples_in(batch)
    entries = [leaf for _, leaf in leaves(batch)]
    return bool(entries) and all(torch.is_tensor(leaf) and leaf.ndim and len(leaf) == count for leaf in entries)
