"""Make the folder in which the processes of a job keep checkpoints in memory, and end those of dead launchers."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun

from accel_launch.job.job import Job
from accel_launch.job.plan import words_of
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.orphan_killer import after_launcher

SHARED_MEMORY = Path("/dev/shm")
#: the file that says which machine has made a folder, without which nothing is ever removed; and the file of one that
#: is being ended
MARKER, ENDING = ".of-a-launcher", ".ends"
#: seconds that a launcher waits for another process to end the folder of a dead launcher
ENDING_S = 60.0
#: seconds without a change after which nobody is waited for: neither another machine, nor a disk that is not there
OLD_S = 24 * 3600.0


def memory_place(named: str | None) -> Path | None:
    """Return the folder in which folders of jobs are made: the named one, or the tmpfs, or None if there is none."""
    if named is not None:
        return Path(named).absolute()
    return SHARED_MEMORY if SHARED_MEMORY.is_mount() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None


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
    with after_launcher(partial(end_dead_folder, folder, is_dead=True)):
        try:
            yield replace(job, environ={**job.environ, MEMORY_CHECKPOINTS: str(folder)}), ends.append
        finally:
            try:
                end_folder(folder, say, well=any(result.code == 0 for result in ends))
            except Exception as error:  # noqa: BLE001 - the exit code is that of the job
                say(f"accel: the folder {folder} of checkpoints in memory could not be ended: {error}")
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
            folder = place / f"accel-memory-{secrets.token_hex(8)}"
            return folder, _make(folder)
        except Exception as error:  # noqa: BLE001 - a launch that has not asked for them must not end by them
            why = f"no folder can be made in {place}: {error}"
    if asked is None and settings.memory_checkpoint_dir is None:
        return None
    option = f"--memory_checkpoint_every {asked}" if asked is not None else "--memory_checkpoint_dir"
    raise CannotRun("accel launch", [f"{option}: {why}"])


def end_folder(folder: Path, say: Callable[[str], None], *, well: bool = False) -> None:
    """Move the newest checkpoint of each project to the disk if the disk has an older one, and remove the folder.

    What could not be moved stays, with the folder, and the next launchers try again for a day.

    Args:
        folder: Folder of a launcher that ends, or is dead.
        say: Prints a line.
        well: The job has succeeded, and nothing is to be moved.
    """
    from accel_launch.memory.rescue import rescue

    began = (folder / ENDING).exists()
    if not began:  # since then a day is counted
        with suppress(OSError):
            (folder / ENDING).touch()
    keeps = [] if well else [kept for kept in folder.glob("*/") if any(kept.glob("checkpoints/*"))]
    if all([rescue(kept, say) for kept in keeps]) or (began and _is_old(folder)):
        shutil.rmtree(folder, ignore_errors=True)


def end_dead_folders(place: Path, say: Callable[[str], None]) -> None:
    """End the folders that dead launchers of this user have left, or wait until another process has ended them.

    Args:
        place: Folder in which the folders of jobs are.
        say: Prints a line.
    """
    for folder in job_folders(place):
        end_dead_folder(folder, say)


def end_dead_folder(folder: Path, say: Callable[[str], None] = lambda words: None, *, is_dead: bool = False) -> None:
    """End the folder of a launcher if the launcher is dead, or wait until another process has ended it.

    Args:
        folder: Folder of a launcher.
        say: Prints a line.
        is_dead: Whether the launcher is known to be dead.
    """
    until = time.monotonic() + ENDING_S
    with suppress(FileNotFoundError):  # another process has ended it
        while time.monotonic() < until and ((folder / MARKER).read_text() == _machine() or _is_old(folder)):
            try:
                lock = _lock(folder)
            except BlockingIOError:
                if not is_dead and not (folder / ENDING).exists():
                    return
                time.sleep(0.05)
                continue
            try:
                end_folder(folder, say)
            finally:
                os.close(lock)
            return  # what could not be moved stays


def job_folders(place: Path) -> list[Path]:
    """Return the folders of jobs of this user, of those that run and of others."""
    found = []
    for path in place.glob("accel-memory-*"):
        with suppress(OSError):
            status = path.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
            if mine and (path / MARKER).exists():
                found.append(path)
    return sorted(found)


def make_again(folder: Path) -> None:
    """Make the folder of this launcher anew if the system has removed it, as for a user who logs out, or go on without.

    Its lock stays until this process ends.
    """
    with suppress(OSError):
        _make(folder)


def _make(folder: Path) -> int:
    """Make a folder that is of this process, and return its lock, which all processes of this machine see."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        lock = _lock(folder)
    except OSError:  # a disk without locks
        folder.rmdir()
        raise
    (folder / MARKER).write_text(_machine())  # others look at it only now
    return lock


def _lock(folder: Path) -> int:
    """Return an open lock of a folder. Raise BlockingIOError if another process has it."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _machine() -> str:
    """Return a name of the running system, in which processes see each other's locks, in containers too."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        return platform.node()


def _is_old(folder: Path) -> bool:
    """Return whether nothing in a folder has changed for a day."""
    return time.time() - max(path.lstat().st_mtime for path in folder.glob("**/*")) > OLD_S
