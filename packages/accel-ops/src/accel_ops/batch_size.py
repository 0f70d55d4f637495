"""Count the samples of a batch, and cut batches between samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accel_ops.tree import concatenate, is_namedtuple, leaves, recursively_apply


def find_batch_size(data: Any) -> int:
    """Return the length of the first tensor along its first dim.

    Args:
        data: Tensors in lists, tuples, named tuples and mappings.

    Raises:
        ValueError: There is no leaf.
        TypeError: The first leaf is no tensor, or a tensor without dims.
    """
    for path, leaf in leaves(data):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"the batch size is the length of a tensor; found a {type(leaf).__name__} at data{path}")
        if leaf.ndim == 0:
            raise TypeError(f"the batch size is the length of a tensor; the one at data{path} has no dims")
        return len(leaf)
    raise ValueError(f"cannot find the batch size of an empty {type(data).__name__}: expected a tensor in it")


def ignorant_find_batch_size(data: Any) -> int | None:
    """Return the batch size, or None if `find_batch_size` would raise."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError):
        return None


def samples_in(batch: Any) -> int:
    """Return the number of samples of a batch of any form.

    Returns:
        The length of the first tensor with dims. Without such a tensor, the length of the first list without containers
        in a mapping, the length of a list or tuple, and 1 for anything else.
    """
    for _, leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    if isinstance(batch, Mapping):
        columns = list[Any]()
        recursively_apply(columns.append, batch, test_type=_is_column)
        return len(columns[0]) if columns else 1
    return len(batch) if isinstance(batch, list | tuple) else 1


def can_be_cut(batch: Any) -> bool:
    """Return whether every leaf of a batch has an entry for each sample.

    Leaves are tensors, and lists of other entries than containers, such as texts.
    """
    count = samples_in(batch)
    parts: list[Any] = []
    recursively_apply(parts.append, batch, test_type=lambda part: not _is_container(part))
    return bool(parts) and all(_has_entries(part, count) for part in parts)


def cut(batch: Any, part: slice) -> Any:
    """Return some samples of a batch.

    Args:
        batch: A batch for which `can_be_cut` is true.
        part: The samples to keep.
    """
    count = samples_in(batch)
    return recursively_apply(lambda entries: entries[part], batch, test_type=lambda found: _has_entries(found, count))


def joined(batches: Sequence[Any]) -> Any:
    """Join the samples of batches into one batch.

    Args:
        batches: Batches for which `can_be_cut` is true, all of the same structure.
    """
    return concatenate(batches, is_column=_is_column)


def _is_column(value: Any) -> bool:
    """Return whether a value is a list or tuple of entries that are no containers."""
    plain = isinstance(value, list | tuple) and not is_namedtuple(value)
    return plain and not any(isinstance(entry, torch.Tensor | list | tuple | Mapping) for entry in value)


def _has_entries(value: Any, count: int) -> bool:
    return (
        len(value) == count if _is_column(value) else torch.is_tensor(value) and value.ndim > 0 and len(value) == count
    )


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping) and not _is_column(value)
