"""Find the tensors of a graph in what a method has returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet

import torch
from torch import nn

#: how deep objects lie in one another: an output holds a distribution, which holds tensors
_DEPTH = 6
_SIMPLE = (str, bytes, int, float, complex, type, nn.Module, torch.dtype, torch.device)


def computed_tensors(result: object) -> list[torch.Tensor]:
    """Return the tensors in a result that a backward can begin at, also those in attributes of objects.

    Parameters are not among them.
    """
    return list(_search(result, set(), _DEPTH))


def _search(value: object, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if value is None or isinstance(value, _SIMPLE) or depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield value
        return
    state = object.__getstate__(value)  # the attributes, and apart from them those in slots
    parts = (value, *(state if isinstance(state, tuple) else (state,)))
    items = value if isinstance(value, list | tuple | AnySet) else ()
    for item in [*items, *(item for part in parts if isinstance(part, Mapping) for item in part.values())]:
        yield from _search(item, seen, depth - 1)
