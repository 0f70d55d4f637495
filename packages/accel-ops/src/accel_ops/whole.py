"""Make sharded tensors in nested data whole before it is exchanged."""

from __future__ import annotations

from typing import Any

import torch
from accel_comm import Transport

from accel_ops.agree import agree_alike
from accel_ops.flat import Flat, is_sharded


def whole(data: Any, operation: str, transport: Transport) -> Any:
    """Replace each sharded tensor (DTensor) in nested data by the whole tensor, without its graph.

    Args:
        data: Nested data; without a sharded tensor it is returned as it is.
        operation: Name of the operation that is to send the data, for error messages.
        transport: Transport of the ranks that take part.

    Raises:
        ShapeMismatch: Ranks have different data; every rank raises.
        CollectiveMismatch: Ranks call different operations; every rank raises.

    Collective:
        If the data of a rank has a sharded tensor, every rank of the job must call.
    """
    flat = Flat(data, operation, objects=True)
    if "sharded" not in flat.kinds:
        return data
    operation = f"{operation}, of sharded tensors"
    sharded = Flat([leaf for leaf in flat.leaves if is_sharded(leaf)], operation)
    agree_alike(operation, sharded, transport, advice="give every rank the same, all sharded or all whole")
    with torch.no_grad():
        return flat.rebuilt(leaf.full_tensor() if is_sharded(leaf) else leaf for leaf in flat.leaves)


def flat_whole(data: Any, operation: str, transport: Transport, *, objects: bool = False) -> Flat:
    """Flatten nested data with each sharded tensor made `whole`.

    Args:
        data: Nested data.
        operation: Name of the operation that is to send the data, for error messages.
        transport: Transport of the ranks that take part.
        objects: Whether a leaf may be any object.

    Collective:
        If the data of a rank has a sharded tensor, every rank of the job must call.
    """
    flat = Flat(data, operation, objects=objects)
    if "sharded" in flat.kinds:
        flat = Flat(whole(data, operation, transport), operation, objects=objects)
    return flat
