"""Ties lives together: a process dies when its parent does, and what processes have left behind can be ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accel_state.environ import JOBS

if TYPE_CHECKING:
    from psutil import Process

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: seconds for processes to be gone, once they are killed
GONE_S = 2.0
#: seconds between two looks at them
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


def adopt_orphans() -> None:
    """Makes this process the parent of what its children leave behind: loader workers, say, of one that was killed.

    Does nothing on systems other than Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(since: float, folder: Path) -> None:
    """Kills what processes that were started after `since` have left to this process.

    As process 1 of a container this process has children that are none of its job's: there it kills only those whose
    environment names the folder of the job. Units: `since` in seconds since the epoch.
    """
    import psutil

    def ours(process: Process) -> bool:
        with suppress(psutil.Error):  # it has ended meanwhile
            return process.create_time() >= since - 1 and (os.getpid() != 1 or names_job(process, folder))
        return False

    _end(lambda: (process for process in psutil.Process().children(recursive=True) if ours(process)))


def end_job(folder: Path) -> None:
    """Kills all processes but this one whose environment names the folder of the job."""
    import psutil

    me = os.getpid()
    _end(lambda: (process for process in psutil.process_iter() if process.pid != me and names_job(process, folder)))


def names_job(process: Process, folder: Path) -> bool:
    """Whether a process was started, by whomever, in the environment of the job that has this folder."""
    import psutil

    with suppress(psutil.Error):  # it has ended, or is somebody else's
        return str(folder) in process.environ().get(JOBS, "").split(":")
    return False


def _end(found: Callable[[], Iterable[Process]]) -> None:
    """Kills processes until none is found, since one may start another before it is killed."""
    import psutil

    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        left = 0
        with suppress(psutil.Error):
            for process in found():
                left += 1
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(RETRY_S)


def reap(own: Container[int]) -> None:
    """Lets go of processes that have ended and that others have left behind; `own` are waited for elsewhere."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in own:
            os.waitpid(found.si_pid, os.WNOHANG)
