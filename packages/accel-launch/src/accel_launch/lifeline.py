"""Ties lives together: a process dies when its parent does, and what processes have left behind can be ended."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: seconds for what is left to be gone, once it is killed
GONE_S = 2.0

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


def adopt_orphans() -> frozenset[int]:
    """Makes this process the parent of what its children leave behind: loader workers, say, of one that was killed.

    The children that it has already, as they were started by what was this process before. Does nothing on systems
    other than Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return frozenset(_children())


def end_orphans(spared: frozenset[int] = frozenset()) -> list[int]:
    """Kills the children of this process, and what they leave behind in turn, but those spared; their process ids."""
    ended: list[int] = []
    until = time.monotonic() + GONE_S
    while (left := [pid for pid in _children() if pid not in spared]) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        ended += left
    return ended


def _children() -> list[int]:
    """The children of this process, as the system knows them."""
    found, me = [], os.getpid()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == me:
                found.append(int(status.parent.name))
    return found
