"""Start a process that outlives the launcher, and ends what it has left if the launcher is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from accel_state.errors import CannotRun

#: the orphan killers of this process, and the ends of pipes by which it tells them that all is over
KILLERS: dict[int, int] = {}


def orphan_killer(folder: Path) -> AbstractContextManager[None]:
    """Let the end of this process end all processes whose environment names the folder, and remove the folder.

    A process that a rank has started may outlive the rank: a wrapper in shell, say, leaves its program behind.

    Args:
        folder: Folder of the job.
    """
    return after_launcher(partial(_end_orphans, folder))


def _end_orphans(folder: Path) -> None:
    from accel_launch.supervise.process_tree import end_job

    end_job(folder)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def after_launcher(end: Callable[[], object]) -> Iterator[None]:
    """Let a process of its own do something if this process is killed inside of the block.

    Blocks inside of this one come first.

    Args:
        end: Function to call in that process.

    Raises:
        CannotRun: There can be no such process.
    """
    try:
        read_end, write_end = os.pipe()
        pid = os.fork()
    except OSError as error:
        raise CannotRun("accel launch", [f"a process that would outlive it cannot be started: {error}"]) from error
    if not pid:
        try:
            _outlive_launcher(read_end)
            end()
        finally:
            os._exit(0)
    os.close(read_end)
    KILLERS[pid] = write_end
    try:
        yield
    finally:
        del KILLERS[pid]
        with suppress(OSError):
            os.write(write_end, b"over")
        os.close(write_end)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _outlive_launcher(read_end: int) -> None:
    """Read the launcher's word that all is over, and end with it. Return if the launcher ends without it."""
    os.setsid()  # what is sent to the launcher's group is not for it
    # the killers of blocks around this one go on waiting as long as this process lives
    kept = {read_end, *KILLERS.values()}
    for name in os.listdir("/dev/fd"):  # as many as are open: a limit of open files may be a thousand million
        with suppress(OSError):
            if int(name) not in kept:
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)  # no file that is opened later may be a standard stream
    for stream in {0, 1, 2} - kept - {null}:
        os.dup2(null, stream)
    if os.read(read_end, 1):
        os._exit(0)
