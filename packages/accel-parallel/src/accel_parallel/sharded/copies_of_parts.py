"""Exchange gradients between the copies of a sharded model once for a window of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch.distributed as dist
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.optim import Optimizer

from accel_parallel.replicated_gradients import average_gradients


@final
class CopiesOfParts:
    """The exchange between sharded copies of a model (HSDP), which a window of several micro-batches makes at its end.

    torch reduces gradients between the ranks of a copy, and then between copies, in each backward. It can leave out the
    latter (`set_requires_all_reduce`), but then forgets the gradients of a block that the last micro-batch does not
    use, and adds up those of different parameters if micro-batches use different ones of a block. Here it is told
    meanwhile that there are no copies, so that the parts add up in `parameter.grad`. Their mean costs one exchange of
    the parts that no backward overlaps, and no memory of their size. In a window of one micro-batch torch exchanges.

    Args:
        model: The sharded model.
        parameters: Its parameters of which ranks hold parts.
        copies: Group of the ranks that hold the same parts.

    Source:
        `FSDPParamGroup.post_backward` and `foreach_reduce` of torch 2.9 to 2.13.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], copies: dist.ProcessGroup) -> None:
        self._parameters, self._copies = parameters, copies
        states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
        self._groups: list[Any] = [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
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
        """Average what a window has added, if its last backward has not: it was left out, or not made by accel.

        Collective:
            Every rank must call.
        """
        if self._behind:
            average_gradients(self._parameters, [self._copies])
            self._behind = False

    def _average_for(self, optimizer: Optimizer) -> None:
        if self._behind and not set(map(id, self._parameters)).isdisjoint(map(id, parameters_of(optimizer))):
            self.average()

    def _put(self, version: int) -> None:
        for group, facts in zip(self._groups, self._facts, strict=True):
            # the mesh after a forward is either the same object, or a part of a copy
            if group.post_forward_mesh_info is group.mesh_info:
                group.post_forward_mesh_info = facts[version]
            group.mesh_info = facts[version]
