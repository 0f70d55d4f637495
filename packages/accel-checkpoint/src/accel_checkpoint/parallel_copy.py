"""Copy many tensors at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch


def parallel_copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second tensor of each pair into the first, without gradients.

    Several threads copy, since one core cannot use the whole bandwidth of the memory.

    Args:
        pairs: Pairs of tensors on the CPU.
    """
    copy = torch.no_grad()(torch.Tensor.copy_)  # in each thread: a block would hold in this thread only
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="accel-copy") as pool:
        list(pool.map(lambda pair: copy(*pair), pairs))
