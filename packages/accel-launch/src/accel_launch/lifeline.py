"""Ties lives together: a process dies when its parent does, and what processes have left behind can be ended."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: seconds for what is left to be gone, once it is killed
GONE_S = 2.0
#: seconds between two looks at what is left
RETRY_S = 0.01

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
    ended: set[int] = set()
    until = time.monotonic() + GONE_S
    while (left := [pid for pid in _children() if pid not in spared]) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):  # one that has become somebody else
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    ended.add(pid)
        time.sleep(0 if ended.issuperset(left) else RETRY_S)
    return sorted(ended)


def reap(own: Container[int]) -> None:
    """Lets go of processes that have ended and that others have left behind; `own` are waited for elsewhere."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in own:
            os.waitpid(found.si_pid, os.WNOHANG)


def _children() -> list[int]:
    """The children of this process, as the system knows them."""
    found, me = [], os.getpid()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == me:
                found.append(int(status.parent.name))
    return found
