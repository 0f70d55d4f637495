"""The samples of a batch: how many there are, and whether it can be cut between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accel_ops.tree import leaves


def samples_in(batch: Any) -> int:
    """The length of the first tensor with dims, else that of a list or tuple, else one."""
    rows = _rows(batch)
    if rows is None:
        return len(batch) if isinstance(batch, list | tuple) else 1
    return rows


def _rows(batch: Any) -> int | None:
    """The length of the first tensor with dims, if there is one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else None
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for one in inner:
        if (rows := _rows(one)) is not None:
            return rows
    return None


def can_be_cut(batch: Any) -> bool:
    """Whether every leaf is a tensor with an entry for each sample."""
    count = samples_in(batch)
    found = [leaf for _, leaf in leaves(batch)]
    return bool(found) and all(isinstance(one, torch.Tensor) and one.ndim and len(one) == count for one in found)
