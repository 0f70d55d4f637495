"""Send the tensors and objects of one rank to every rank."""

from __future__ import annotations

from typing import Any

import torch
from accel_comm import Transport
from accel_comm.transports import longest_of

from accel_ops.agree import agree_alike
from accel_ops.packing import in_groups, to_bytes, to_tensors, travels_small
from accel_ops.whole import flat_whole


def broadcast(data: Any, transport: Transport, *, source: int = 0) -> Any:
    """Send the nested tensors of one rank to every rank.

    Args:
        data: Nested tensors, with the same structure, shapes and dtypes on every rank.
        transport: Transport of the ranks that take part.
        source: Rank whose values every rank gets.

    Returns:
        New tensors in the containers of `data`. A sharded tensor (DTensor) becomes a whole one. A single process gets
        back `data` itself, unless it is sharded.

    Shape:
        Unchanged.

    Raises:
        ShapeMismatch: Shapes or dtypes differ between ranks.
        CollectiveMismatch: Ranks name different sources.
        TypeError: A leaf is no tensor, or a tensor that cannot be sent, such as a sparse one.
        ValueError: The rank `source` does not exist.

    Collective:
        Every rank of the group must call.
    """
    _require_rank(source, transport)
    operation = f"broadcast (from rank {source})"
    flat = flat_whole(data, operation, transport)
    if transport.size == 1:
        if not isinstance(data, torch.Tensor):
            flat.check()
        return flat.data
    tensors = flat.tensors
    small, here = flat.refusal is None and travels_small(tensors, transport.inline_bytes), transport.rank == source
    advice = "give every rank a tensor of the shape to receive, or use broadcast_object_list"
    parts = agree_alike(operation, flat, transport, to_bytes(tensors) if small and here else b"", advice=advice)
    flat.check()
    if not small:
        return flat.rebuilt(in_groups(tensors, lambda whole: _broadcast(whole, transport, source)))
    if here:
        return flat.rebuilt(tensor.detach().clone() for tensor in tensors)
    return flat.rebuilt(to_tensors(longest_of(parts), [(tensor.shape, tensor.dtype) for tensor in tensors]))


def broadcast_object_list(objects: list[Any], transport: Transport, *, source: int = 0) -> list[Any]:
    """Replace the objects in a list by those of one rank, on every rank.

    Args:
        objects: List to change; its objects are pickled.
        transport: Transport of the ranks that take part.
        source: Rank whose objects every rank gets.

    Returns:
        The list `objects` itself.

    Raises:
        CollectiveMismatch: Ranks name different sources.
        ValueError: The rank `source` does not exist.

    Collective:
        Every rank of the group must call.
    """
    _require_rank(source, transport)
    # a rank that only sends would not hear of another source
    transport.agree(f"broadcast_object_list (from rank {source})")
    objects[:] = transport.broadcast_object(objects, source)
    return objects


def _broadcast(whole: torch.Tensor, transport: Transport, source: int) -> torch.Tensor:
    """Send one tensor, with equal shapes and dtypes on every rank (collective)."""
    return transport.broadcast(whole.view(torch.uint8), source).view(whole.dtype)


def _require_rank(source: int, transport: Transport) -> None:
    if not 0 <= source < transport.size:
        raise ValueError(f"rank {source} of {transport.size}: expected 0 to {transport.size - 1}")
