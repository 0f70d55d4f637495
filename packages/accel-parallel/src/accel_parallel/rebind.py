"""Points optimizers at the parameters that replaced their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from accel_state import AccelError
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


class StaleParameters(AccelError, ValueError):
    """An optimizer holds parameters that its model no longer has."""


def replaced(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """The parameters that a move to another device replaced by new objects."""
    return {old: new for old, new in zip(before, after, strict=True) if old is not new}


def rebind(optimizer: Optimizer, new_of: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Puts new parameters into the optimizer's groups and state, in the places of the old ones.

    State of the shape of a parameter that is sharded now is sharded alike: it is that of rank 0.

    Collective: if new parameters are sharded, every rank must call with like state.
    """
    for group in optimizer.param_groups:
        group["params"] = [new_of.get(parameter, parameter) for parameter in group["params"]]
    for old in [parameter for parameter in optimizer.state if parameter in new_of]:
        state = optimizer.state.pop(old)
        optimizer.state[new_of[old]] = {key: _placed_like(value, old, new_of[old]) for key, value in state.items()}


def _placed_like(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if not isinstance(new, DTensor) or not isinstance(value, torch.Tensor) or value.shape != old.shape:
        return value
    return distribute_tensor(value.to(new.device), new.device_mesh, new.placements)


def follow(model: nn.Module, names: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Optimizer]) -> None:
    """Lets optimizers follow the parameters that were replaced by others of their names.

    Collective: as `rebind`.
    """
    now = dict(model.named_parameters(remove_duplicate=False))
    # the first name of a tied parameter counts
    before = {parameter: now[name] for name, parameter in reversed(names)}
    new_of = replaced(before, before.values())
    if new_of:
        for optimizer in optimizers:
            rebind(optimizer, new_of)


def tie_again(model: nn.Module, names: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Makes parameters one again that were one before a move and came out of it as two."""
    after = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, parameter in names:
        leader = first.setdefault(id(parameter), name)
        if after[name] is not after[leader]:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, after[leader])


def refuse_stale(optimizers: Sequence[Optimizer], models: Sequence[nn.Module], device: torch.device) -> None:
    """Refuses optimizers of parameters that a move to a device has replaced.

    Raises: StaleParameters if an optimizer has parameters on another device, with the shapes of a model on `device`.
    """
    known = {id(parameter) for model in models for parameter in model.parameters()}
    looks = [Counter(parameter.shape for parameter in model.parameters()) for model in models]
    for number, optimizer in enumerate(optimizers):
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        elsewhere = all(id(parameter) not in known and parameter.device != device for parameter in held)
        if held and elsewhere and Counter(parameter.shape for parameter in held) in looks:
            raise StaleParameters(
                f"optimizer {number} ({type(optimizer).__name__}) holds {len(held)} parameters that none of the models"
                " has any more: they were replaced when the model was moved to its device. Create the optimizer after"
                " model.to(accelerator.device), or leave the moving to prepare (device_placement=True)"
            )
