"""One rank's tensors and objects, on every rank."""

from __future__ import annotations

from typing import Any

from accel_state import Transport

from accel_ops.agree import require_alike
from accel_ops.tree import recursively_apply, require_tensors


def broadcast(data: Any, transport: Transport, *, source: int = 0) -> Any:
    """Nested tensors of rank `source`.

    Shape: unchanged.
    Raises: ShapeMismatch when another rank gives other shapes or dtypes; TypeError for a leaf that is no tensor;
    ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    if transport.size > 1:
        advice = "give every rank a tensor of the shape to receive, or use broadcast_object_list"
        require_alike(f"broadcast (from rank {source})", data, transport, advice=advice)
    require_tensors("broadcast", data)
    return recursively_apply(lambda tensor: transport.broadcast(tensor, source), data)


def broadcast_object_list(objects: list[Any], transport: Transport, *, source: int = 0) -> list[Any]:
    """`objects`, overwritten in place by those of rank `source`.

    Raises: ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    objects[:] = transport.broadcast_object(objects, source)
    return objects


def _require_rank(source: int, transport: Transport) -> None:
    if not 0 <= source < transport.size:
        raise ValueError(f"rank {source} of {transport.size}: expected 0 to {transport.size - 1}")
