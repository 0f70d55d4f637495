"""Gives a model that was made on the meta device memory on a real one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers that hold no numbers, by name; also buffers that are never saved."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor for name, tensor in named if tensor.is_meta}


def materialise(model: nn.Module, device: torch.device) -> None:
    """Replaces what is on the meta device by uninitialised memory on `device`; the rest stays as it is.

    Tied weights stay tied, which `nn.Module.to_empty` would undo.
    """
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, tensor in list(_own(module)):
            if tensor.is_meta:
                if id(tensor) not in made:
                    made[id(tensor)] = _empty(tensor, device)
                setattr(module, name, made[id(tensor)])


def move(model: nn.Module, device: torch.device) -> None:
    """Moves the model, and ties again what a move that makes new parameters (to XLA) parts."""
    names = [(name, id(one)) for name, one in model.named_parameters(remove_duplicate=False)]
    model.to(device)
    moved = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, nn.Parameter] = {}
    for name, before in names:
        one = first.setdefault(before, moved[name])
        if moved[name] is not one:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, one)


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _empty(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
