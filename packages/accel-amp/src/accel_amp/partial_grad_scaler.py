"""Scale gradients of which each rank holds a part."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.optim import Optimizer

from accel_amp.local_part import local_part
from accel_amp.optimizer_parameters import parameters_of


@final
class PartialGradScaler(torch.amp.GradScaler):
    """A GradScaler that checks the parts of gradients that this rank holds, and exchanges nothing.

    The GradScaler of torch checks distributed tensors of one kind only, and exchanges values once for each.
    """

    @torch.no_grad()
    def _unscale_grads_(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> dict[torch.device, torch.Tensor]:
        # torch reads the groups of an optimizer only, which `_Parts` has
        return super()._unscale_grads_(_Parts(optimizer), *args, **kwargs)  # type: ignore[arg-type]


class _Parts:
    """The gradients that an optimizer steps with, in the form that torch's function reads."""

    def __init__(self, optimizer: Optimizer) -> None:
        held = [one.grad for one in parameters_of(optimizer) if one.grad is not None]
        self.param_groups = [{"params": [_holder(local_part(gradient)) for gradient in held]}]


def _holder(gradient: torch.Tensor) -> torch.Tensor:
    holder = gradient.detach()
    holder.grad = gradient
    return holder
