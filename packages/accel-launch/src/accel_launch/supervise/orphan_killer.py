"""A process that ends what a launcher leaves when it is killed: what its processes have started, in any session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def orphan_killer(folder: Path) -> Iterator[None]:
    """While it lasts, the end of this process is the end of all whose environment names the folder, and of the folder.

    What a process of a job has started dies with that one only if it wants to: a wrapper in shell, say, leaves its
    program behind.
    """
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
    """Waits for the launcher's word that all is over, or for the end of the launcher."""
    os.setsid()  # what is sent to the launcher's group is not for it
    for name in os.listdir("/dev/fd"):  # as many as are open: a limit of open files may be a thousand million
        with suppress(OSError):
            if int(name) != told:
                os.close(int(name))
    if os.read(told, 1):
        return
    from accel_launch.supervise.process_tree import end_job

    end_job(folder)
    shutil.rmtree(folder, ignore_errors=True)
