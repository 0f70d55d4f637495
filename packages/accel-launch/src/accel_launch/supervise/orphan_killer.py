"""Start a process that outlives the launcher, and ends the rest of its job if the launcher is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def orphan_killer(folder: Path, memory: Path | None = None) -> Iterator[None]:
    """Let the end of this process end all processes whose environment names the folder, and remove the folder.

    A process that a rank has started may outlive the rank: a wrapper in shell, say, leaves its program behind.

    Args:
        folder: Folder of the job.
        memory: Folder of checkpoints in memory, whose newest is moved to the disk then.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _outlive_launcher(read_end, folder, memory)
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


def _outlive_launcher(read_end: int, folder: Path, memory: Path | None) -> None:
    """Read the launcher's word that all is over. If the launcher ends without it, kill the whole job."""
    os.setsid()  # what is sent to the launcher's group is not for it
    for name in os.listdir("/dev/fd"):  # as many as are open: a limit of open files may be a thousand million
        with suppress(OSError):
            if int(name) != read_end:
                os.close(int(name))
    if os.read(read_end, 1):
        return
    from accel_launch.supervise.process_tree import end_job

    end_job(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if memory is not None:
        from accel_launch.memory.job_folder import end_after_launcher

        end_after_launcher(memory)
