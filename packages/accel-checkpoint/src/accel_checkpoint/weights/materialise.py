"""Give a model on the meta device memory on a real device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_checkpoint.pieces import is_distributed


def on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers on the meta device, by name, also those that are never saved."""
    return {name: tensor for name, tensor in named_tensors(model).items() if tensor.is_meta}


def divided_tensors(model: nn.Module) -> list[Any]:
    """Return the parameters and buffers of which processes hold parts or copies (DTensors)."""
    return [tensor for tensor in named_tensors(model).values() if is_distributed(tensor)]


def materialise(model: nn.Module, device: torch.device, device_of_parts: torch.device | None = None) -> None:
    """Give the tensors on the meta device uninitialised memory, and leave other tensors as they are.

    Each stays the object that it is, so optimizers still hold it, and tied weights stay tied: `nn.Module.to_empty`
    would make new ones.

    Args:
        model: Model to change.
        device: Device for the memory.
        device_of_parts: Device for the memory of distributed parameters. By default `device`.
    """
    empty = {id(tensor): tensor for tensor in on_meta(model).values()}
    for tensor in empty.values():
        if not is_distributed(tensor):
            values = torch.empty_like(tensor, device=device, requires_grad=False)
            torch.utils.swap_tensors(tensor, like_kind(values, tensor))  # type: ignore[no-untyped-call] # of torch
    if any(tensor.is_meta for tensor in empty.values()):
        place = device_of_parts or device
        module: Any = model
        # a sharded module takes up its new parts by _apply, and torch keeps the objects
        module._apply(lambda tensor: torch.empty_like(tensor, device=place) if tensor.is_meta else tensor)
    for tensor in empty.values():
        _take_up_hooks(tensor)


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device. Tied weights stay tied, which a move to XLA alone would separate."""
    names = [(name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)]
    model.to(device)
    moved = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, nn.Parameter] = {}
    for name, before in names:
        shared = first.setdefault(before, moved[name])
        if moved[name] is not shared:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, shared)


def named_tensors(module: nn.Module, *, recurse: bool = True) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by all of their names. Tied weights have several."""
    parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(recurse=recurse, remove_duplicate=False))}


def like_kind(values: torch.Tensor, tensor: torch.Tensor, *, trains: bool = True) -> torch.Tensor:
    """Return values as a parameter with the attributes of another tensor if that is one, or as they are.

    Args:
        values: The values.
        tensor: The other tensor.
        trains: Whether it has gradients, if the other one has.
    """
    if not isinstance(tensor, nn.Parameter):
        return values
    parameter = nn.Parameter(values, requires_grad=trains and tensor.requires_grad)
    parameter.__dict__.update(tensor.__dict__)
    return parameter


def _take_up_hooks(parameter: Any) -> None:
    """Register the hooks again, as swap_tensors keeps their list but leaves the engine without them."""
    if parameter._post_accumulate_grad_hooks is not None:
        parameter._post_accumulate_grad_hooks = parameter._post_accumulate_grad_hooks
