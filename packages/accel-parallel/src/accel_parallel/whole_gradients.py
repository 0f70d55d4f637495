"""The gradients of parameters that every rank of a sharded model holds whole, averaged before they are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
import torch.distributed as dist
from accel_amp.step_hook import call_before_steps
from torch import nn
from torch.optim import Optimizer


@final
class WholeGradients:
    """Makes gradients of whole parameters the mean over the ranks of the groups, before any optimizer of them steps.

    Ranks may have used different parameters. To average twice changes nothing: the mean of equal numbers is equal.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], groups: Sequence[dist.ProcessGroup]) -> None:
        self._parameters, self._groups = list(parameters), groups
        call_before_steps(self._average_for)

    def average(self) -> None:
        """Averages them: one exchange for each dtype.

        Collective: every rank must call.
        """
        alike: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in self._parameters if self._groups else ():
            if parameter.requires_grad:
                alike.setdefault(parameter.dtype, []).append(parameter)
        for parameters in alike.values():
            self._average(parameters)

    def _average(self, parameters: Sequence[nn.Parameter]) -> None:
        with torch.no_grad():
            found = [parameter.grad for parameter in parameters]
            parts = [
                torch.zeros_like(parameter) if gradient is None else gradient
                for parameter, gradient in zip(parameters, found, strict=True)
            ]
            has = torch.stack([parts[0].new_full((), gradient is not None) for gradient in found])
            numbers = torch.cat([*(part.reshape(-1) for part in parts), has])
            for group in self._groups:
                dist.all_reduce(numbers, group=group)
            *sums, users = torch.split(numbers, [*(part.numel() for part in parts), len(parts)])
            # only a rank that lacks a gradient has to look if another has it
            used = users.tolist() if any(gradient is None for gradient in found) else [1] * len(parts)
            ranks = 1
            for group in self._groups:
                ranks *= dist.get_world_size(group)
            for parameter, total, some in zip(parameters, sums, used, strict=True):
                if some:
                    parameter.grad = (total / ranks).view_as(parameter)

    def _average_for(self, optimizer: Optimizer) -> None:
        mine = {id(parameter) for parameter in self._parameters}
        if any(id(held) in mine for group in optimizer.param_groups for held in group["params"]):
            self.average()
