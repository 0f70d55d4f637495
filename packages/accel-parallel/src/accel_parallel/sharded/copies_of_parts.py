"""Exchange gradients between the copies of a sharded model once for a window of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
import torch.distributed as dist
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.optim import Optimizer

from accel_parallel.replicated_gradients import average_gradients
from accel_parallel.sharded.parameter_groups import divided_parameters, parameter_groups


@final
class CopiesOfParts:
    """The exchange between sharded copies of a model (HSDP), which a window of several micro-batches makes at its end.

    torch reduces gradients between the ranks of a copy, and then between copies, in each backward. It can leave out the
    latter (`set_requires_all_reduce`), but then forgets the gradients of a block that the last micro-batch does not
    use, and adds up those of different parameters if micro-batches use different ones of a block. Here it is told
    meanwhile that there are no copies, so that the parts add up in `parameter.grad`. Their mean costs one exchange of
    the parts, which no backward overlaps, with memory for two copies of a chunk of them. In a window of one micro-batch
    torch exchanges.

    Args:
        model: The sharded model.
        copies: Group of the ranks that hold the same parts.
        dtype: Dtype that gradients are reduced in; None for that of each parameter.

    Source:
        `FSDPParamGroup.post_backward` and `foreach_reduce` of torch 2.9 to 2.13.
    """

    def __init__(self, model: nn.Module, copies: dist.ProcessGroup, dtype: torch.dtype | None) -> None:
        self._copies, self._dtype, self._groups = copies, dtype, parameter_groups(model)
        facts = [group.mesh_info for group in self._groups]
        #: facts of the mesh, as torch has made them and without the copies
        self._facts = [(fact, FSDPMeshInfo(fact.mesh, fact.shard_mesh_dim)) for fact in facts]
        #: whether copies have added gradients that are not averaged yet
        self._behind = False
        call_before_steps(self._average_for)

    @contextmanager
    def backward(self, *, due: bool) -> Iterator[None]:
        """Return a context for a backward.

        Args:
            due: Whether the window ends with it.

        Collective:
            Every rank must enter and leave.
        """
        # a script that divides gradients by a number of its own means that of all ranks
        if (due and not self._behind) or any(group.gradient_divide_factor for group in self._groups):
            yield
            return
        self._behind = True
        self._put(1)
        try:
            yield
        finally:
            self._put(0)
        if due:
            self.average()

    def average(self) -> None:
        """Compute the means of what a window has added, if its last backward has not, or was left out.

        Collective:
            Every rank must call.
        """
        if self._behind:
            average_gradients(divided_parameters(self._groups), [self._copies], self._dtype)
            self._behind = False

    def _average_for(self, optimizer: Optimizer) -> None:
        if self._behind:
            mine = set(map(id, divided_parameters(self._groups)))
            if not mine.isdisjoint(map(id, parameters_of(optimizer))):
                self.average()

    def _put(self, version: int) -> None:
        for group, facts in zip(self._groups, self._facts, strict=True):
            # the mesh after a forward is either the same object, or a part of a copy
            if group.post_forward_mesh_info is group.mesh_info:
                group.post_forward_mesh_info = facts[version]
            group.mesh_info = facts[version]
