"""Compute and clip the norm of gradients of which each rank may hold a part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from accel_amp import local_part
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

#: the groups of ranks among which the parts of a gradient are spread
Groups = tuple[dist.ProcessGroup, ...]


def with_gradients(parameters: Iterable[torch.Tensor], call: str) -> list[torch.Tensor]:
    """Return the parameters of a call as a list.

    Raises:
        ValueError: None of them has a gradient.
    """
    listed = list(parameters)
    # the first has one, but in odd cases
    if listed and listed[0].grad is None and all(parameter.grad is None for parameter in listed):
        raise ValueError(
            f"{call}: none of the {len(listed)} parameters has a gradient; call it after backward() and before"
            " zero_grad(), with parameters of the model that was trained"
        )
    return listed


@torch.no_grad()
def clip_sharded_norm(parameters: Iterable[torch.Tensor], max_norm: float, *, kind: float = 2.0) -> torch.Tensor:
    """Return the norm of all gradients, each part counted once, and scale gradients down if it exceeds a limit.

    Args:
        parameters: Parameters with the gradients.
        max_norm: The limit.
        kind: Exponent of the norm.

    Collective:
        Every rank must call. One number is exchanged for each way in which gradients are sharded.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = sharded_norm(gradients, kind)
    # no look at the number: on a GPU that would wait for the device
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in map(local_part, gradients):
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), held in alike.items():
        # the host would read a number that it does not wait for
        torch._foreach_mul_(held, factor.to(device, non_blocking=device.type != "cpu"))
    return norm


@torch.no_grad()
def sharded_norm(gradients: Sequence[torch.Tensor], kind: float = 2.0) -> torch.Tensor:
    """Return the norm of gradients of which ranks hold parts.

    Args:
        gradients: The gradients.
        kind: Exponent of the norm.

    Raises:
        ValueError: The norm is 0, which counts tensors, and no rank has whole ones.

    Collective:
        Every rank must call.
    """
    if kind == 0:
        raise ValueError("norm_type=0 with sharded parameters: expected another number, inf or -inf")
    if not gradients:
        return torch.zeros((), device="cpu")
    # gradients of offloaded parameters are on the host, beside those of whole parameters, and the norm is where groups
    # exchange
    place = _place(gradients)
    spread: dict[tuple[Groups, torch.device], list[torch.Tensor]] = {}
    known: dict[tuple[DeviceMesh, tuple[Placement, ...]], Groups] = {}
    for gradient in gradients:
        groups: Groups = ()
        if isinstance(gradient, DTensor):
            layout = gradient.device_mesh, gradient.placements
            if layout not in known:
                known[layout] = _groups(*layout)
            groups = known[layout]
        part = local_part(gradient)
        spread.setdefault((groups, part.device), []).append(part)
    parts = [_norm_over(groups, held, kind, place) for (groups, _), held in spread.items()]
    return parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts), kind)


def _place(gradients: Sequence[torch.Tensor]) -> torch.device:
    meshes = (gradient.device_mesh for gradient in gradients if isinstance(gradient, DTensor))
    mesh = next(meshes, None)
    return gradients[0].device if mesh is None else torch.device(mesh.device_type)


def _norm_over(groups: Groups, held: Sequence[torch.Tensor], kind: float, place: torch.device) -> torch.Tensor:
    """Return the norm of tensors of one device, whose parts are on the ranks of the same groups."""
    wide = torch.float64 if held[0].dtype == torch.float64 else torch.float32
    filled = [part for part in held if part.numel()]
    # what an empty part adds to a sum of powers is nothing, and it has no smallest number
    nothing = torch.full((), math.inf if kind < 0 else 0.0, dtype=wide, device=held[0].device)
    norms = torch._foreach_norm(filled, kind, dtype=wide) if filled else [nothing]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), kind).to(place)
    if not groups:
        return norm
    if math.isinf(kind):
        return _over(norm, groups, dist.ReduceOp.MAX if kind > 0 else dist.ReduceOp.MIN)
    total: torch.Tensor = _over(norm**kind, groups, dist.ReduceOp.SUM) ** (1.0 / kind)
    return total


def _over(number: torch.Tensor, groups: Groups, how: dist.ReduceOp.RedOpType) -> torch.Tensor:
    for group in groups:
        dist.all_reduce(number, how, group=group)
    return number


def _groups(mesh: DeviceMesh, placements: Sequence[Placement]) -> Groups:
    # a part of a part, as of a layer that is divided and then sharded, is no `Shard` in newer versions of torch
    axes = [axis for axis, placement in enumerate(placements) if not placement.is_replicate()]
    return tuple(mesh.get_group(axis) for axis in axes if mesh.size(axis) > 1)
