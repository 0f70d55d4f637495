"""Find tensors in nested values, and the parts of them that are on this rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested values, faster than torch's own functions for trees do."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple | Mapping):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors_in(value)


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this rank has: of a DTensor that of its own."""
    return getattr(tensor, "_local_tensor", tensor)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors: of a DTensor, those of all ranks."""
    return sum(tensor.nbytes for tensor in tensors)


def local_bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors on this rank."""
    return bytes_of(map(local, tensors))
