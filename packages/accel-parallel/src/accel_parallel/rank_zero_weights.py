"""Gives all ranks of a sharded model the weights of the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def send_weights(model: nn.Module, groups: Sequence[dist.ProcessGroup], device: torch.device) -> None:
    """Gives all ranks of the groups the weights and buffers of the first; those on the meta device are left out.

    Collective: every rank must call with a model of like parameters.
    """
    send_tensors(chain(model.parameters(), model.buffers()), groups, device)


def send_tensors(tensors: Iterable[torch.Tensor], groups: Sequence[dist.ProcessGroup], device: torch.device) -> None:
    """Gives all ranks of the groups the numbers of the first; tensors on the meta device are left out.

    Collective: every rank must call with like tensors in like order.
    """
    with torch.no_grad():
        for tensor in tensors:
            held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if held.is_meta or not groups:
                continue
            there = held.to(device).contiguous()
            for group in groups:
                dist.broadcast(there, group=group, group_src=0)
            if there is not held:
                held.copy_(there)
