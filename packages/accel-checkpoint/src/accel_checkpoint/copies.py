"""Copies many tensors at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


def copy_all(pairs: Iterable[Pair]) -> None:
    """Copies the second tensor of each pair into the first; all are on the CPU, and no gradient goes through.

    One core does not fill the way to the memory, and somebody waits for this.
    """
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="accel-copy") as pool:
        list(pool.map(_copy, pairs))


def _copy(pair: Pair) -> None:
    with torch.no_grad():  # each thread has its own
        pair[0].copy_(pair[1])
