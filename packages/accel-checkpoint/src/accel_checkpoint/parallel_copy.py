"""Copies many tensors at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


def parallel_copy(pairs: Iterable[Pair]) -> None:
    """Copies the second tensor of each pair into the first, without gradients. All tensors are on the CPU.

    Several threads copy, since one core cannot use the whole bandwidth of the memory.
    """
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="accel-copy") as pool:
        list(pool.map(_copy, pairs))


def _copy(pair: Pair) -> None:
    target, source = pair
    with torch.no_grad():  # each thread has its own
        target.copy_(source)
