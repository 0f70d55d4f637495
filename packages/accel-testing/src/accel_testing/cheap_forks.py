"""Prepare a process that is forked many times."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

MADV_COLLAPSE = 25
HUGE_PAGE_BYTES = 2**21


def prepare_forks() -> None:
    """Let forks share what this process has loaded: keep the garbage collector off it, and lay it into huge pages.

    A fork copies an entry for each page, and its end removes the copies: 60,000 for torch's pages, or a hundred for
    huge pages.
    """
    gc.collect()
    gc.freeze()
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        if "w" not in rights or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        end = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if start < end:
            # a kernel older than 6.1 refuses, and nothing is lost
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)
