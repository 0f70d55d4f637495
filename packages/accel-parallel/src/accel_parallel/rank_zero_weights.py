"""Gives all ranks of a sharded model the weights of the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from accel_amp import local_part


def send_tensors(tensors: Iterable[torch.Tensor], groups: Sequence[dist.ProcessGroup], device: torch.device) -> None:
    """Gives all ranks of the groups the numbers of the first; tensors on the meta device are left out.

    Collective: every rank must call with like tensors in like order.
    """
    with torch.no_grad():
        for tensor in tensors:
            held = local_part(tensor)
            if held.is_meta or not groups:
                continue
            there = held.to(device).contiguous()
            for group in groups:
                dist.broadcast(there, group=group, group_src=0)
            if there is not held:
                held.copy_(there)
