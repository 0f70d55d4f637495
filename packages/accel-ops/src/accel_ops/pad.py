"""Pad nested tensors to the longest rank, or to a multiple of the ranks."""

from __future__ import annotations

from typing import Any

import torch
from accel_comm import Transport

from accel_ops.agree import ShapeMismatch, digest, signatures, table
from accel_ops.flat import Flat
from accel_ops.tree import recursively_apply
from accel_ops.whole import flat_whole


def pad_across_processes(
    data: Any, transport: Transport, *, dim: int = 0, pad_index: float = 0, pad_first: bool = False
) -> Any:
    """Pad nested tensors along a dim to the length on the longest rank.

    Args:
        data: Nested tensors, with the same structure on every rank.
        transport: Transport of the ranks that take part.
        dim: Dim to pad; a tensor without it is returned as it is.
        pad_index: Value to pad with.
        pad_first: Pad before the values, not behind them.

    Returns:
        The padded tensors in the containers of `data`. A sharded tensor (DTensor) becomes a whole one.

    Shape:
        (..., n_r, ...) on rank r -> (..., max of n_r, ...) on all ranks; other dims are unchanged.

    Raises:
        TypeError: A leaf is no tensor, or a tensor that cannot be sent, such as a sparse one.
        IndexError: Some tensor has two dims or more, and none has `dim`.
        ShapeMismatch: Ranks have different structures.

    Collective:
        Every rank of the group must call.
    """
    operation = f"pad_across_processes (dim {dim})"
    flat = flat_whole(data, operation, transport)
    if transport.size == 1 or transport.agree(operation, digest(flat)) is not None:
        flat.check()
        _require_dim(flat, dim)
        return flat.rebuilt(flat.leaves)
    rows, sites = signatures(operation, flat, transport)
    if len({tuple((leaf.path, len(leaf.shape), leaf.kind, leaf.device) for leaf in leaves) for leaves in rows}) > 1:
        raise ShapeMismatch(f"pad_across_processes needs the same structure on all ranks, found{table(rows, sites)}")
    flat.check()
    _require_dim(flat, dim)
    columns = iter(list(zip(*rows, strict=True)))

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        column = next(columns)
        if not -tensor.ndim <= dim < tensor.ndim:
            return tensor
        missing = max(leaf.shape[dim] for leaf in column) - tensor.shape[dim]
        if missing == 0:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = missing
        filling = tensor.new_full(shape, pad_index)
        return torch.cat([filling, tensor] if pad_first else [tensor, filling], dim=dim)

    return flat.rebuilt(map(pad, flat.leaves))


def _require_dim(flat: Flat, dim: int) -> None:
    # of single values and single rows, as models return them for some tasks, there is nothing to pad
    most = max((leaf.ndim for leaf in flat.leaves), default=0)
    if most > 1 and not -most <= dim < most:
        raise IndexError(f"pad_across_processes (dim {dim}): no tensor has that dim, they have up to {most} dims")


def pad_input_tensors(data: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Repeat the last row of nested tensors until the rows are a multiple of the processes.

    Args:
        data: Nested tensors.
        batch_size: Rows of the tensors to pad; a tensor with other lengths is returned as it is.
        num_processes: Number that is to divide the rows.
        dim: Dim along which rows are counted.

    Shape:
        (batch_size, ...) -> (next multiple of num_processes, ...), for dim=0.
    """
    wanted = -(-batch_size // num_processes) * num_processes

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim <= dim or tensor.shape[dim] != batch_size or wanted == batch_size:
            return tensor
        last = tensor.narrow(dim, batch_size - 1, 1)
        return torch.cat([tensor, last.repeat_interleave(wanted - batch_size, dim=dim)], dim=dim)

    return recursively_apply(pad, data)
