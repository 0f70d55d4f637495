"""Make the folder in which the processes of a job keep checkpoints in memory, and end those of dead launchers."""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun

from accel_launch.job.job import Job
from accel_launch.job.plan import words_of
from accel_launch.report.job_result import JobResult

SHARED_MEMORY = Path("/dev/shm")
#: the file that says which machine has made a folder, without which it is never removed; and that of a folder which is
#: being ended
MARKER, ENDING = ".of-a-launcher", ".ends"
#: seconds that a launcher waits for another process to end the folder of a dead launcher
ENDING_S = 60.0
#: seconds without a change after which nobody is waited for: neither another machine, nor a disk that is not there
OLD_S = 24 * 3600.0


def memory_place(named: str | None) -> Path | None:
    """Return the folder in which folders of jobs are made: the named one, or the tmpfs, or None if there is none."""
    if named:
        return Path(named).absolute()
    return SHARED_MEMORY if SHARED_MEMORY.is_mount() else None


def run_with_memory(job: Job, run: Callable[[Job], JobResult], say: Callable[[str], None]) -> JobResult:
    """Run a job with a folder for checkpoints in memory, and return how it has ended.

    The folder is gone after it. Unless the job has succeeded, its newest checkpoint is on the disk then, or the folder
    stays.

    Args:
        job: Job to run.
        run: Runs it.
        say: Prints a line.

    Raises:
        CannotRun: Checkpoints in memory were asked for, and there is no place for them; or as by `run`.
    """
    made, well = _made_for(job, say), False
    if made is None:
        return run(job)
    folder, lock = made
    try:
        result = run(replace(job, environ={**job.environ, MEMORY_CHECKPOINTS: str(folder)}))
        well = result.code == 0
    finally:
        try:
            end_folder(folder, say, well=well)
        except Exception as error:  # noqa: BLE001 - the exit code is that of the job
            say(f"accel: the folder {folder} of checkpoints in memory could not be ended: {error}")
        os.close(lock)
    return result


def _made_for(job: Job, say: Callable[[str], None]) -> tuple[Path, int] | None:
    """Return a new folder for a job, with its lock, or None if it can have none and has asked for none."""
    settings = job.settings
    # a rank of a launcher that has a folder: it is for this rank too
    if MEMORY_CHECKPOINTS in job.environ and not settings.is_flag("memory_checkpoint_dir"):
        return None
    try:
        place = memory_place(settings.memory_checkpoint_dir)
        if job.place is not None:
            raise OSError(f"another launcher ({words_of(job.place)}) has started this one: leave the option out")
        if place is None:
            raise OSError(
                f"no tmpfs is at {SHARED_MEMORY}: name a folder of a local disk, --memory_checkpoint_dir FOLDER"
            )
        end_dead_folders(place, say)
        folder = place / f"accel-memory-{secrets.token_hex(8)}"
        return folder, make_folder(folder)
    except Exception as error:  # a launch that has not asked for them must not end by them
        if not (settings.memory_checkpoint_every or settings.memory_checkpoint_dir):
            return None
        raise CannotRun("accel launch", [f"no checkpoints can be kept in memory: {error}"]) from error


def make_folder(folder: Path) -> int:
    """Make a folder that is of this process, and return its lock, which all processes of this machine see.

    Args:
        folder: A path at which nothing is.

    Raises:
        OSError: Something is there, or the disk refuses, or it has no locks.
    """
    folder.mkdir(mode=0o700, parents=True)
    try:
        lock = _lock(folder)
    except OSError:  # a disk without locks
        folder.rmdir()
        raise
    (folder / MARKER).write_text(_machine())  # others look at it only now
    return lock


def end_folder(folder: Path, say: Callable[[str], None], *, well: bool = False) -> None:
    """Move the newest checkpoint of each project to the disk if the disk has an older one, and remove the folder.

    What could not be moved stays, with the folder, and the next launchers try again for a day.

    Args:
        folder: Folder of a launcher that ends, or is dead.
        say: Prints a line.
        well: The job has succeeded, and nothing is to be moved.
    """
    from accel_launch.memory.rescue import rescue

    with suppress(OSError):  # it is there since an end that could not move all, from which a day is counted
        (folder / ENDING).touch(exist_ok=False)
    if well or all([rescue(kept, say) for kept in folder.glob("*/checkpoints")]) or _are_old([folder / ENDING]):
        shutil.rmtree(folder, ignore_errors=True)


def end_dead_folders(place: Path, say: Callable[[str], None], *, own: Path | None = None) -> None:
    """End the folders that dead launchers of this user have left, or wait until other processes have ended them.

    Args:
        place: Folder in which the folders of jobs are.
        say: Prints a line.
        own: A folder whose launcher is known to be dead, if its lock is still seen.
    """
    for folder in job_folders(place):
        until = time.monotonic() + ENDING_S
        with suppress(FileNotFoundError):  # another process has ended it, or makes it at this moment
            while time.monotonic() < until and (
                # machines may share a disk, and see no locks of each other
                (folder / MARKER).read_text() == _machine() or _are_old(folder.glob("**/*"))
            ):
                try:
                    lock = _lock(folder)
                except BlockingIOError:
                    if folder != own and not (folder / ENDING).exists():  # its launcher lives
                        break
                    time.sleep(0.05)
                else:
                    try:
                        end_folder(folder, say)
                    finally:
                        os.close(lock)
                    break


def job_folders(place: Path) -> Iterator[Path]:
    """Yield the folders of jobs of this user, of those that run and of others."""
    for path in place.glob("accel-memory-*/"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                yield path


def _lock(folder: Path) -> int:
    """Return an open lock of a folder. Raise BlockingIOError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _machine() -> str:
    """Return a name of the running system, in which processes see each other's locks, in containers too."""
    system = Path("/proc/sys/kernel/random/boot_id")  # of Linux
    return system.read_text() if system.exists() else platform.node()


def _are_old(paths: Iterable[Path]) -> bool:
    """Return whether none of these has changed for a day."""
    return time.time() - max(path.lstat().st_mtime for path in paths) > OLD_S
