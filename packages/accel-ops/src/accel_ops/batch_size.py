"""How many samples a batch has, and whether it can be cut between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accel_ops.tree import leaves


def find_batch_size(data: Any) -> int:
    """The length of the first leaf along its first dim.

    Raises: ValueError if there is no leaf; TypeError if the first leaf is no tensor with a dim.
    """
    for path, leaf in leaves(data):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"the batch size is the length of a tensor; found a {type(leaf).__name__} at data{path}")
        if leaf.ndim == 0:
            raise TypeError(f"the batch size is the length of a tensor; the one at data{path} has no dims")
        return len(leaf)
    raise ValueError(f"cannot find the batch size of an empty {type(data).__name__}")


def ignorant_find_batch_size(data: Any) -> int | None:
    """The batch size, or None if `find_batch_size` would raise."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError):
        return None


def samples_in(batch: Any) -> int:
    """The length of the first tensor with dims, else that of a list or tuple, else one."""
    length = _first_length(batch)
    if length is not None:
        return length
    return len(batch) if isinstance(batch, list | tuple) else 1


def _first_length(data: Any) -> int | None:
    if isinstance(data, torch.Tensor):
        return data.shape[0] if data.ndim else None
    items: Iterable[Any] = ()
    if isinstance(data, tuple | list):
        items = data
    elif isinstance(data, Mapping):
        items = data.values()
    for item in items:
        length = _first_length(item)
        if length is not None:
            return length
    return None


def can_be_cut(batch: Any) -> bool:
    """Whether every leaf is a tensor with an entry for each sample."""
    count = samples_in(batch)
    entries = [leaf for _, leaf in leaves(batch)]
    return bool(entries) and all(torch.is_tensor(leaf) and leaf.ndim and len(leaf) == count for leaf in entries)
