"""Make sharded tensors in nested data whole before it is exchanged."""

from __future__ import annotations

import sys
from typing import Any

import torch
from accel_comm import Transport

from accel_ops.agree import agree_alike
from accel_ops.flat import Flat, any_tensor, is_sharded


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
    # nothing is sharded while the module that shards has not been imported
    if "torch.distributed.tensor" not in sys.modules or not any_tensor(data, is_sharded):
        return data
    operation = f"{operation}, of sharded tensors"
    flat = Flat(data, operation, objects=True)
    sharded = Flat([leaf for leaf in flat.leaves if is_sharded(leaf)], operation)
    agree_alike(operation, sharded, transport, advice="give every rank the same, all sharded or all whole")
    with torch.no_grad():
        return flat.rebuilt(leaf.full_tensor() if is_sharded(leaf) else leaf for leaf in flat.leaves)
