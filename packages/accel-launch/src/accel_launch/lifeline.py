"""Ties the life of a process to that of its parent: it dies when the parent does, whatever ended the parent."""

import ctypes
import os
import signal
import sys

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1

# Loaded here and not at its use: between fork and exec only what is ready may be called.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Has this process killed when its parent ends; kills it at once if process `parent` is its parent no longer.

    Does nothing on systems other than Linux. The tie is to the thread that started this process (man 2 prctl).
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the tie was made.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
