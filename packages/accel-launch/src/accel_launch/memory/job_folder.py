"""Make the folder in which the processes of a job keep checkpoints in memory, and end those of dead launchers."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun

from accel_launch.job.job import Job
from accel_launch.job.plan import words_of
from accel_launch.report.job_result import JobResult

SHARED_MEMORY = Path("/dev/shm")
#: seconds that a launcher waits for another process to end the folder of a dead launcher
ENDING_S = 60.0


def memory_place(named: str | None, mounts: Path = Path("/proc/mounts")) -> Path | None:
    """Return the folder in which folders of jobs are made: the named one, or a tmpfs, or None if there is none.

    Args:
        named: What the user has named.
        mounts: The file systems of this machine.
    """
    if named is not None:
        return Path(named).absolute()
    with suppress(OSError):
        for line in mounts.read_text().splitlines():
            _, point, kind, *_ = line.split()
            if Path(point) == SHARED_MEMORY and kind == "tmpfs" and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
                return SHARED_MEMORY
    return None


@contextmanager
def with_memory(job: Job, say: Callable[[str], None]) -> Iterator[tuple[Job, Callable[[JobResult], None]]]:
    """Yield the job with a folder for checkpoints in memory, and a function that takes how the job has ended.

    The folder is gone after the block. Unless the job has succeeded, its newest checkpoint is on the disk then, or the
    folder stays.

    Args:
        job: Job to run.
        say: Prints a line.

    Raises:
        CannotRun: Checkpoints in memory were asked for, and there is no place for them.
    """
    ends = list[JobResult]()
    made = _made_for(job, say)
    if made is None:
        yield job, ends.append
        return
    folder, lock = made
    try:
        yield replace(job, environ={**job.environ, MEMORY_CHECKPOINTS: str(folder)}), ends.append
    finally:
        end_folder(folder, say, well=any(result.code == 0 for result in ends))
        os.close(lock)


def _made_for(job: Job, say: Callable[[str], None]) -> tuple[Path, int] | None:
    """Return a new folder for a job, with its lock, or None if it can have none and has asked for none."""
    settings = job.settings
    place, asked = memory_place(settings.memory_checkpoint_dir), settings.memory_checkpoint_every
    why = ""
    if job.place is not None:
        told = words_of(job.place)
        why = f"another launcher has started this one ({told}), and would start it again: leave the option out"
    elif place is None:
        why = f"there is no tmpfs at {SHARED_MEMORY}: name a folder of a local disk, --memory_checkpoint_dir FOLDER"
    else:
        try:
            end_dead_folders(place, say)
            return _make(place)
        except OSError as error:
            why = f"no folder can be made in {place}: {error}"
    if asked is None and settings.memory_checkpoint_dir is None:
        return None
    option = f"--memory_checkpoint_every {asked}" if asked is not None else "--memory_checkpoint_dir"
    raise CannotRun("accel launch", [f"{option}: {why}"])


def end_folder(folder: Path, say: Callable[[str], None], *, well: bool = False) -> None:
    """Move the newest checkpoint of each project to the disk if the disk has an older one, and remove the folder.

    What could not be moved stays, with the folder.

    Args:
        folder: Folder of a launcher that ends, or is dead.
        say: Prints a line.
        well: The job has succeeded, and nothing is to be moved.
    """
    from accel_launch.memory.rescue import mark_of, project_of, rescue

    stays = False
    for kept in sorted(folder.glob("*/")):
        if well or not any(kept.glob("checkpoints/*")) or rescue(kept, say):
            if (project := project_of(kept)) is not None:
                with suppress(OSError):
                    mark_of(kept, project).unlink()
            shutil.rmtree(kept, ignore_errors=True)
        else:
            stays = True
    if not stays:
        shutil.rmtree(folder, ignore_errors=True)


def end_dead_folders(place: Path, say: Callable[[str], None]) -> None:
    """End the folders that dead launchers of this user have left, or wait until another process has ended them.

    Args:
        place: Folder in which the folders of jobs are.
        say: Prints a line.
    """
    for folder in job_folders(place):
        until = time.monotonic() + ENDING_S
        while (seen := _is_dead(folder)) is not False and time.monotonic() < until:
            lock = _lock(folder)
            if lock is not None:
                try:
                    end_folder(folder, say)
                finally:
                    os.close(lock)
                break  # what could not be moved stays
            if seen is None:
                break
            time.sleep(0.05)  # its orphan killer, or another launcher, is about to end it


def end_after_launcher(folder: Path) -> None:
    """End the folder of a launcher that was killed, as its orphan killer, unless another launcher is faster."""
    until = time.monotonic() + ENDING_S
    while folder.is_dir() and time.monotonic() < until:
        lock = _lock(folder)
        if lock is not None:
            end_folder(folder, lambda words: None)
            os.close(lock)
            return
        time.sleep(0.05)


def job_folders(place: Path) -> list[Path]:
    """Return the folders of jobs of this user, of those that run and of others."""
    found = []
    for path in place.glob(f"{_prefix()}*-*-*-*"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                found.append(path)
    return sorted(found)


def _make(place: Path) -> tuple[Path, int]:
    """Make a folder of this process, and return it with its lock, which other processes see."""
    if place != SHARED_MEMORY:
        place.mkdir(parents=True, exist_ok=True)
    folder = Path(
        tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-{_start_of(os.getpid())}-{_process_space()}-", dir=place)
    )
    lock = _lock(folder)
    if lock is None:
        raise OSError(errno.EAGAIN, "another process has locked the folder that was just made", str(folder))
    return folder, lock


def _lock(folder: Path) -> int | None:
    """Return an open lock of a folder, or None if another process has it, or the folder is gone."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _prefix() -> str:
    return f"accel-memory-{os.getuid()}-"


def _is_dead(folder: Path) -> bool | None:
    """Return whether a folder is there and its launcher is not, or None if only the lock can tell."""
    pid, start, space, _ = folder.name.removeprefix(_prefix()).split("-", 3)
    if not folder.is_dir():
        return False
    return _start_of(int(pid)) != start if space == _process_space() else None


def _process_space() -> str:
    """Return a number for the processes that this process sees: containers may share memory, and no processes."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _start_of(pid: int) -> str:
    """Return when a process has started, in ticks since the start of the system, or "gone"."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return "gone"
        return "gone" if fields[0] == "Z" else fields[19]
    try:
        os.kill(pid, 0)
    except OSError:
        return "gone"
    return "runs"
