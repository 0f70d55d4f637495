"""Exchanges as a careful person writes them by hand who knows what all ranks have, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Tensors = dict[str, Tensor]

# renamed in torch 2.13, where the old name warns
_NAMES = vars(dist)
_gathering: Callable[..., Any] = _NAMES.get("all_gather_single") or _NAMES["all_gather_into_tensor"]


def gather(mine: Tensor) -> Tensor:
    """One tensor of all ranks, joined along dim 0."""
    joined = mine.new_empty((dist.get_world_size() * len(mine), *mine.shape[1:]))
    _gathering(joined, mine)
    return joined


def gather_all(mine: Tensors) -> Tensors:
    """Vectors of all ranks, each joined: one message."""
    rows = gather(_flat(mine)).view(dist.get_world_size(), -1)
    parts = torch.split(rows, [one.numel() for one in mine.values()], dim=1)
    return {name: part.reshape(-1) for name, part in zip(mine, parts, strict=True)}


def reduce(mine: Tensor) -> Tensor:
    """The sum of one tensor over all ranks."""
    total = mine.clone()
    dist.all_reduce(total)
    return total


def reduce_all(mine: Tensors) -> Tensors:
    """The sum of each tensor over all ranks: one message."""
    total = _flat(mine)
    dist.all_reduce(total)
    return _unpacked(total, mine)


def broadcast(mine: Tensor) -> Tensor:
    """One tensor of rank 0, written over the others'."""
    dist.broadcast(mine, 0)
    return mine


def broadcast_all(mine: Tensors) -> Tensors:
    """The tensors of rank 0: one message."""
    whole = _flat(mine)
    dist.broadcast(whole, 0)
    return _unpacked(whole, mine)


def gather_object(mine: list[Any]) -> list[Any]:
    """The lists of all ranks, joined."""
    parts: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, mine)
    return [one for part in parts for one in part]


def broadcast_object_list(mine: list[Any]) -> list[Any]:
    """The list of rank 0, written over the others'."""
    dist.broadcast_object_list(mine, 0)
    return mine


def _flat(mine: Tensors) -> Tensor:
    return torch.cat([one.view(-1) for one in mine.values()])


def _unpacked(whole: Tensor, like: Tensors) -> Tensors:
    parts = torch.split(whole, [one.numel() for one in like.values()])
    return {name: part.view(one.shape) for (name, one), part in zip(like.items(), parts, strict=True)}
