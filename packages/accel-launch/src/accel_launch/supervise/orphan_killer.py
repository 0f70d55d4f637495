"""Start a process that outlives the launcher, and ends what it has left if the launcher is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accel_state.errors import CannotRun


@contextmanager
def orphan_killer(folder: Path, memory: str | None = None) -> Iterator[None]:
    """Let the end of this process end all processes whose environment names the folder, and remove the folder.

    A process that a rank has started may outlive the rank: a wrapper in shell, say, leaves its program behind.

    Args:
        folder: Folder of the job.
        memory: Folder of checkpoints in memory, whose newest is moved to the disk then.

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
            _end_orphans(folder, memory)
        finally:
            os._exit(0)
    os.close(read_end)
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(write_end, b"over")
        os.close(write_end)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _outlive_launcher(read_end: int) -> None:
    """Read the launcher's word that all is over, and end with it. Return if the launcher ends without it."""
    os.setsid()  # what is sent to the launcher's group is not for it
    for name in os.listdir("/dev/fd"):  # as many as are open: a limit of open files may be a thousand million
        with suppress(OSError):
            if int(name) != read_end:
                os.close(int(name))
    while os.open(os.devnull, os.O_RDWR) < 3:
        pass  # no file that is opened later may be a standard stream
    if os.read(read_end, 1):
        os._exit(0)


def _end_orphans(folder: Path, memory: str | None) -> None:
    from accel_launch.supervise.process_tree import end_job

    end_job(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if memory:
        from accel_launch.memory.job_folder import end_dead_folders

        end_dead_folders(Path(memory).parent, lambda words: None, own=Path(memory))
