"""Combine the gradients of parameters that every rank of a sharded model holds whole, before they are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch
import torch.distributed as dist
from accel_amp import local_part
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from torch import nn
from torch.optim import Optimizer

#: numbers that travel together, if no parameter has more
CHUNK = 1 << 22


@final
class ReplicatedGradientSync:
    """The gradients of whole parameters, averaged over ranks before any optimizer of them steps.

    Ranks may have used different parameters. To average twice changes nothing, as the mean of equal values is equal.

    Args:
        parameters: Parameters that every rank holds whole.
        groups: Groups of ranks to average over.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], groups: Sequence[dist.ProcessGroup]) -> None:
        #: the parameters by their identities
        self.parameters, self._groups = {id(parameter): parameter for parameter in parameters}, groups
        call_before_steps(self._average_for)

    def average(self) -> None:
        """Compute the averages.

        Collective:
            Every rank must call.
        """
        if self._groups:
            average_gradients(self.parameters.values(), self._groups)

    def _average_for(self, optimizer: Optimizer) -> None:
        if any(id(held) in self.parameters for held in parameters_of(optimizer)):
            self.average()


@torch.no_grad()
def average_gradients(
    parameters: Iterable[torch.Tensor], groups: Sequence[dist.ProcessGroup], reduced: torch.dtype | None = None
) -> None:
    """Replace gradients by their mean over the ranks of the groups. A rank without one counts as zeros, unless all are.

    It needs memory for the gradients of one dtype, up to `CHUNK` elements and one parameter at a time.

    Args:
        parameters: Parameters with the gradients; of a DTensor the part of this rank is averaged.
        groups: The groups.
        reduced: Dtype to compute in; None for that of each parameter.

    Raises:
        ValueError: Gradients are sparse.

    Collective:
        Every rank must call with like parameters.
    """
    chunks: list[list[torch.Tensor]] = []
    filling: dict[torch.dtype, list[torch.Tensor]] = {}
    room: dict[torch.dtype, int] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        dtype = parameter.dtype
        if room.get(dtype, 0) <= 0:
            filling[dtype], room[dtype] = [], CHUNK
            chunks.append(filling[dtype])
        filling[dtype].append(parameter)
        room[dtype] -= local_part(parameter).numel()
    for chunk in chunks:
        _average(chunk, groups, reduced)


def _average(
    parameters: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup], reduced: torch.dtype | None
) -> None:
    found = [parameter.grad for parameter in parameters]
    if any(gradient is not None and gradient.is_sparse for gradient in found):
        raise ValueError(
            "sparse gradients of parameters that came after prepare, or of a second backward of one forward, are not"
            " exchanged; leave out sparse=True, or pass the model with them to prepare and call backward once"
        )
    wholes = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]
    parts = [local_part(whole) for whole in wholes]
    has = torch.stack([parts[0].new_full((), gradient is not None) for gradient in found])
    numbers = torch.cat([*(part.reshape(-1) for part in parts), has]).to(reduced or parts[0].dtype)
    for group in groups:
        dist.all_reduce(numbers, group=group)
    *sums, users = torch.split(numbers, [*(part.numel() for part in parts), len(parts)])
    # only a rank that lacks a gradient has to look if another has it
    used = users.tolist() if any(gradient is None for gradient in found) else [1] * len(parts)
    ranks = 1
    for group in groups:
        ranks *= dist.get_world_size(group)
    for parameter, whole, part, total, some in zip(parameters, wholes, parts, sums, used, strict=True):
        part.copy_((total / ranks).view_as(part))  # it may be a part of a bucket
        if some:
            parameter.grad = whole
