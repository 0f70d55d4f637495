"""Points optimizers at the parameters that replaced their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from accel_state import AccelError
from torch import nn
from torch.optim import Optimizer


class StaleParameters(AccelError, ValueError):
    """An optimizer holds parameters that its model no longer has."""


def replaced(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """The parameters that a move to another device replaced by new objects."""
    return {old: new for old, new in zip(before, after, strict=True) if old is not new}


def rebind(optimizer: Optimizer, new_of: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Puts new parameters into the optimizer's groups and state, in the places of the old ones."""
    for group in optimizer.param_groups:
        group["params"] = [new_of.get(parameter, parameter) for parameter in group["params"]]
    for old in [parameter for parameter in optimizer.state if parameter in new_of]:
        optimizer.state[new_of[old]] = optimizer.state.pop(old)


def refuse_stale(optimizers: Sequence[Optimizer], models: Sequence[nn.Module]) -> None:
    """Returns when every optimizer trains the models it came with, or others altogether.

    Raises: StaleParameters for one whose parameters look like a model's but are none of its.
    """
    current = [parameter for model in models for parameter in model.parameters()]
    known = {id(parameter) for parameter in current}
    shapes = {_look(parameter) for parameter in current}
    for number, optimizer in enumerate(optimizers):
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strangers = [parameter for parameter in held if id(parameter) not in known]
        if held and len(strangers) == len(held) and all(_look(parameter) in shapes for parameter in strangers):
            raise StaleParameters(
                f"optimizer {number} ({type(optimizer).__name__}) holds {len(held)} parameters that none of the models"
                " has any more: they were replaced when the model was moved to its device. Create the optimizer after"
                " model.to(accelerator.device), or leave the moving to prepare (device_placement=True)"
            )


def _look(parameter: torch.Tensor) -> tuple[int, ...]:
    return tuple(parameter.shape)
