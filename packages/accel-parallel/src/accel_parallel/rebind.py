"""Points optimizers at the parameters that replaced their own."""

from __future__ import annotations

from collections import Counter
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
