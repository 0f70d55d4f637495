"""Has the system give large tensors few large pages instead of many small ones, which takes it a third of the time."""

from __future__ import annotations

import ctypes
import sys

import torch

# <linux/mman.h>
_MADV_HUGEPAGE = 14
#: bytes of a large page
PAGE = 1 << 21

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
if _LIBC is not None:
    _LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def in_large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor of the CPU, nothing of which was written yet; where there are no large pages, as it is."""
    begin = -(-tensor.data_ptr() // PAGE) * PAGE
    size = (tensor.data_ptr() + tensor.nbytes - begin) // PAGE * PAGE
    if _LIBC is not None and size > 0:
        _LIBC.madvise(begin, size, _MADV_HUGEPAGE)  # an advice: whether it is followed does not matter
    return tensor
