"""The tensors and objects of one rank, on every rank."""

from __future__ import annotations

from typing import Any

import torch
from accel_state import Transport
from accel_state.transports import longest_of

from accel_ops.agree import agree_alike
from accel_ops.flat import Flat
from accel_ops.packing import in_groups, to_bytes, to_tensors, travels_small
from accel_ops.whole import whole


def broadcast(data: Any, transport: Transport, *, source: int = 0) -> Any:
    """The nested tensors of rank `source`, in new tensors, sharded ones whole; alone, other data comes back as it is.

    Shape: unchanged.
    Raises: ShapeMismatch if shapes or dtypes differ between ranks; CollectiveMismatch if the sources do; TypeError
    for a leaf that is no tensor; ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    operation = f"broadcast (from rank {source})"
    data = whole(data, operation, transport)
    if transport.size == 1:
        if not isinstance(data, torch.Tensor):
            Flat(data, operation).check()
        return data
    flat = Flat(data, operation)
    tensors = flat.tensors
    small, here = flat.refusal is None and travels_small(tensors, transport.room), transport.rank == source
    advice = "give every rank a tensor of the shape to receive, or use broadcast_object_list"
    parts = agree_alike(operation, flat, transport, to_bytes(tensors) if small and here else b"", advice=advice)
    flat.check()
    if not small:
        return flat.rebuilt(in_groups(tensors, lambda whole: _broadcast(whole, transport, source)))
    if here:
        return flat.rebuilt(tensor.detach().clone() for tensor in tensors)
    return flat.rebuilt(to_tensors(longest_of(parts), [(tensor.shape, tensor.dtype) for tensor in tensors]))


def broadcast_object_list(objects: list[Any], transport: Transport, *, source: int = 0) -> list[Any]:
    """The list `objects` itself, with the objects of rank `source` in it.

    Raises: CollectiveMismatch if ranks name different sources; ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    # a rank that only sends would not hear of another source
    transport.agree(f"broadcast_object_list (from rank {source})")
    objects[:] = transport.broadcast_object(objects, source)
    return objects


def _broadcast(whole: torch.Tensor, transport: Transport, source: int) -> torch.Tensor:
    """Collective: every rank of the group must call, with tensors of equal shapes and dtypes."""
    return transport.broadcast(whole.view(torch.uint8), source).view(whole.dtype)


def _require_rank(source: int, transport: Transport) -> None:
    if not 0 <= source < transport.size:
        raise ValueError(f"rank {source} of {transport.size}: expected 0 to {transport.size - 1}")
