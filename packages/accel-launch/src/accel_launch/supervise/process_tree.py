"""Let processes die with their parent, and end processes that others left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accel_state.environ import JOBS

if TYPE_CHECKING:
    from psutil import Process

# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: seconds for processes to be gone, once they are killed; and between two looks at them
GONE_S, RETRY_S = 2.0, 0.01

# Loaded here and not at its use: between fork and exec only what is ready may be called.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. If `parent` is its parent no longer, kill it at once.

    It has no effect on systems other than Linux. The tie is to the thread that started this process (man 2 prctl).
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the tie was made.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of orphans of its children: loader workers, say, of a rank that was killed.

    It has no effect on systems other than Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_job(folder: Path, since: float | None = None) -> None:
    """Kill all processes whose environment names the folder of the job, whichever process started them.

    Orphans that came to this process die too, with any environment. As process 1 of a container it spares them, since
    it has children outside the job.

    Args:
        folder: Folder of the job.
        since: Time after which orphans have come; None spares them.

    Units:
        Seconds since the epoch.
    """
    import psutil

    until = time.monotonic() + GONE_S
    killed: set[Process] = set()
    while True:  # until none is found, since a process may start another before it is killed
        members = list(_members(folder, since if os.getpid() != 1 else None))
        for process in members:
            with suppress(psutil.Error):
                process.kill()
        # a process that dies has no environment any more, and is to be let go of too
        killed = {process for process in killed.union(members) if _lives(process)}
        reap([])
        if not (members or killed) or time.monotonic() >= until:
            return
        time.sleep(RETRY_S)


def _lives(process: Process) -> bool:
    """Return True if a process is neither gone nor a zombie."""
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _members(folder: Path, since: float | None) -> Iterator[Process]:
    import psutil

    me = psutil.Process()
    descendants = set(me.children(recursive=True)) if since is not None else set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is somebody else's
            left = process in descendants and process.create_time() >= (since or 0) - 1
            if process != me and (left or str(folder) in process.environ().get(JOBS, "").split(":")):
                yield process


def reap(own: Container[int]) -> None:
    """Remove zombies that others have left behind, except `own`, which are waited for elsewhere."""
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, os.WNOHANG)
