"""Ask the system for huge pages, in which it allocates large tensors in a third of the time."""

from __future__ import annotations

import ctypes
import sys

import torch

# <linux/mman.h>
_MADV_HUGEPAGE = 14
#: bytes of a huge page
PAGE = 1 << 21

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
if _LIBC is not None:
    _LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def advise_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor, whose memory the system will allocate in huge pages if it has some.

    Args:
        tensor: A tensor on the CPU, into which nothing was written yet.
    """
    begin = -(-tensor.data_ptr() // PAGE) * PAGE
    size = (tensor.data_ptr() + tensor.nbytes - begin) // PAGE * PAGE
    if _LIBC is not None and size > 0:
        _LIBC.madvise(begin, size, _MADV_HUGEPAGE)  # an advice: its result does not matter
    return tensor
