"""Tensors of a graph in what a method has returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet

import torch
from torch import nn

#: how deep objects lie in one another: an output holds a distribution, which holds tensors
_DEPTH = 6
_SIMPLE = (str, bytes, int, float, complex, type, nn.Module, torch.dtype, torch.device)


def computed_tensors(result: object) -> list[torch.Tensor]:
    """The tensors in a result that a backward can begin at, also those in attributes of objects; no parameters."""
    return list(_search(result, set(), _DEPTH))


def _search(value: object, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if value is None or isinstance(value, _SIMPLE) or depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.grad_fn is not None:
            yield value
        return
    members = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | AnySet) else ()
    )
    for item in [*members, *_attributes(value)]:
        yield from _search(item, seen, depth - 1)


def _attributes(value: object) -> Iterator[object]:
    try:
        yield from vars(value).values()
    except TypeError:  # a plain container, a function of C, or a class with slots alone
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                try:
                    yield getattr(value, name)
                except AttributeError:  # a slot that nothing was put into
                    continue
