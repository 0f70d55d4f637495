"""A process that ends what a launcher leaves when it is killed: what its processes have started, in any session."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accel_launch.lifeline import GONE_S, RETRY_S


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """While it lasts, the end of this process is the end of all whose environment names the folder, and of the folder.

    What a process of a job has started dies with that one only if it wants to: a wrapper in shell, say, leaves its
    program behind. Does nothing on systems other than Linux, where no other process's environment can be read.
    """
    if sys.platform != "linux":
        yield
        return
    told, tells = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _wait(told, folder)
        finally:
            os._exit(0)
    os.close(told)
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(tells, b"over")
        os.close(tells)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _wait(told: int, folder: Path) -> None:
    """What the guard does: it waits for the launcher's word that all is over, or for the end of the launcher."""
    os.setsid()  # what is sent to the launcher's group is not for it
    os.closerange(0, told)
    os.closerange(told + 1, os.sysconf("SC_OPEN_MAX"))
    if os.read(told, 1):
        return
    until = time.monotonic() + GONE_S
    while (left := _named(folder)) and time.monotonic() < until:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(RETRY_S)
    shutil.rmtree(folder, ignore_errors=True)


def _named(folder: Path) -> list[int]:
    """The processes whose environment names the folder, but this one."""
    name, found = str(folder).encode(), []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            pid = int(place.parent.name)
            if name in place.read_bytes() and pid != os.getpid():
                found.append(pid)
    return found
