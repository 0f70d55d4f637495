"""Find parameters whose gradients differ on ranks that divide layers, though these ranks hold them whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from accel_amp import local_part
from accel_state.mesh import Axis
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from accel_parallel.stages.tensor_plan import TensorPlanError

#: a difference of gradients, relative to their norm, that is none of rounding
UNLIKE = 1e-2
#: numbers of a gradient that are compared at a time
CHUNK = 1 << 22
#: backwards after which a parameter without a gradient is waited for no more
LAST = 8


@final
class GradientComparison:
    """A comparison of the first gradient of each parameter, or part of one, that all ranks of the mesh hold.

    Gradients differ if a parameter that the plan leaves out meets divided activations: training would go wrong. Each
    group of such ranks compares its own part, and all ranks of the job hear of it at the end of the backward, which
    raises TensorPlanError on all of them.

    A parameter that has no gradient after some backwards is not compared: each look exchanges and waits for the device.

    Args:
        model: The sharded model.
        mesh: Mesh of the ranks that divide layers.
        device: Device to exchange on.

    Collective:
        All ranks of the job must call backward, until each parameter has had a gradient or eight backwards have ended.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh, device: torch.device) -> None:
        self._mesh, self._device = mesh, device
        trained = [(path, parameter) for path, parameter in model.named_parameters() if parameter.requires_grad]
        self._pending = {path: parameter for path, parameter in trained if not _is_divided(parameter)}
        self._backward: int | None = None
        self._left = LAST
        # data ranks may use different parameters, but never none
        hooked: list[Any] = [parameter for _, parameter in trained] if self._pending else []
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._await_end) for parameter in hooked]

    def _await_end(self, grown: torch.Tensor) -> None:
        current = torch._C._current_graph_task_id()
        if current != self._backward:
            self._backward = current
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._compare)

    @torch.no_grad()
    def _compare(self) -> None:
        has_gradient = self._largest([float(parameter.grad is not None) for parameter in self._pending.values()])
        seen = [path for path, has in zip(self._pending, has_gradient, strict=True) if has]
        largest = self._largest([self._difference(self._pending[path]) for path in seen])
        shares = dict(zip(seen, largest, strict=True))
        self._pending = {
            path: parameter for path, parameter in self._pending.items() if shares.get(path, math.inf) > UNLIKE
        }
        unlike = [path for path, share in shares.items() if UNLIKE < share < math.inf]
        if unlike:
            others = f" (and those of {', '.join(unlike[1:4])})" if len(unlike) > 1 else ""
            raise TensorPlanError(
                f"{unlike[0]} is whole on all {self._mesh.size()} ranks that divide layers, and its gradients differ"
                f" there{others} by up to {max(shares[path] for path in unlike):.0%}. Either it meets divided"
                ' activations: put its module into tp_plan, as "sequence_parallel" or "replicated_with_grad_allreduce".'
                " Or these ranks had unlike inputs, or drew unlike random numbers (dropout): seed them alike"
            )
        self._left -= 1
        if not self._pending or not self._left:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()

    def _difference(self, parameter: nn.Parameter) -> float:
        """Return how much of its gradient differs from the group's mean, or inf if it has overflowed when scaled."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        difference = norm = torch.zeros((), device=self._device)
        for chunk in torch.split(local_part(gradient).flatten(), CHUNK):
            numbers = chunk.to(self._device, torch.promote_types(chunk.dtype, torch.float32))
            mean = numbers.clone()
            dist.all_reduce(mean, group=self._mesh.get_group())
            mean /= self._mesh.size()
            difference = torch.hypot(difference, torch.linalg.vector_norm(numbers - mean).float())
            norm = torch.hypot(norm, torch.linalg.vector_norm(numbers).float())
        whole = torch.maximum(difference, norm)
        if not whole.isfinite():
            return math.inf
        return (difference / whole).item() if whole > 0 else 0.0

    def _largest(self, numbers: Sequence[float]) -> list[float]:
        """Return the largest of each number on any rank of the job, as groups hold different parts of a parameter."""
        if not numbers:
            return []
        largest = torch.tensor(numbers, device=self._device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()


def _is_divided(parameter: nn.Parameter) -> bool:
    axes = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
    return str(Axis.TENSOR) in (axes or ())
