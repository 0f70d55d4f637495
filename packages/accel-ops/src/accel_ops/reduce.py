"""Sums and means of nested tensors over all ranks."""

from __future__ import annotations

from typing import Any

from accel_state import Reduction, Transport

from accel_ops.agree import require_alike
from accel_ops.tree import recursively_apply, require_tensors

REDUCTIONS: tuple[Reduction, ...] = ("sum", "mean", "max", "min")


def reduce(data: Any, transport: Transport, *, how: Reduction = "mean", scale: float = 1.0) -> Any:
    """Nested tensors combined element by element over all ranks, then multiplied by `scale`.

    Shape: unchanged.
    Raises: ValueError for an unknown reduction; TypeError for a leaf that is no tensor; ShapeMismatch when shapes or
    dtypes differ between ranks.
    Collective: every rank of the group must call.
    """
    if how not in REDUCTIONS:
        raise ValueError(f"reduction={how!r}: expected one of {', '.join(REDUCTIONS)}")
    if transport.size > 1:
        advice = "give every rank the same, or use gather"
        require_alike(f"reduce ({how})", data, transport, advice=advice)
    require_tensors("reduce", data)

    def combine(tensor: Any) -> Any:
        combined = transport.all_reduce(tensor, how)
        return combined if scale == 1.0 else combined * scale

    return recursively_apply(combine, data)
