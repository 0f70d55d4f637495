"""Gives a model on the meta device memory on a real device."""

from __future__ import annotations

import torch
from torch import nn


def on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers on the meta device, by name. Buffers that are never saved are included."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor for name, tensor in named if tensor.is_meta}


def materialise(model: nn.Module, device: torch.device) -> None:
    """Gives the tensors on the meta device uninitialised memory on `device`. Other tensors stay as they are.

    Tied weights stay tied; `nn.Module.to_empty` would separate them.
    """
    by_id: dict[int, torch.Tensor] = {}
    for module in model.modules():
        own = module.named_parameters(recurse=False, remove_duplicate=False)
        for name, tensor in [*own, *module.named_buffers(recurse=False, remove_duplicate=False)]:
            if tensor.is_meta:
                if id(tensor) not in by_id:
                    by_id[id(tensor)] = _empty(tensor, device)
                setattr(module, name, by_id[id(tensor)])


def move(model: nn.Module, device: torch.device) -> None:
    """Moves the model. Tied weights stay tied; a move to XLA makes new parameters and would separate them."""
    names = [(name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)]
    model.to(device)
    moved = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, nn.Parameter] = {}
    for name, before in names:
        shared = first.setdefault(before, moved[name])
        if moved[name] is not shared:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, shared)


def _empty(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
