"""Make the folder in which the processes of a job keep checkpoints in memory, and end those of dead launchers."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from accel_comm.status_store import own_host
from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun

from accel_launch.job.job import Job
from accel_launch.job.plan import words_of
from accel_launch.report.job_result import JobResult
from accel_launch.supervise.orphan_killer import after_launcher

SHARED_MEMORY = Path("/dev/shm")
#: the name of a folder, and the file that a launcher makes first in it: nothing else is ever removed
NAME = re.compile(r"accel-memory-(?P<host>[0-9a-f]{12})-(?P<pid>\d+)-(?P<start>\d+|runs)-[a-z0-9_]{8}")
MARKER = ".of-a-launcher"
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
        # a mount point may have any bytes
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").split("\n"):
            _, point, kind, *_ = [*line.split(), "", "", ""]
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
    with after_launcher(partial(end_after_launcher, folder)):
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
            return _make(place)
        except Exception as error:  # noqa: BLE001 - a launch that has not asked for them must not end by them
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
        while _is_dead(folder) and time.monotonic() < until:
            lock = _lock(folder)
            if lock is not None:
                try:
                    end_folder(folder, say)
                finally:
                    os.close(lock)
                break  # what could not be moved stays
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
    for path in place.glob("accel-memory-*"):
        with suppress(OSError):
            status = path.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
            if mine and NAME.fullmatch(path.name) and (path / MARKER).exists():
                found.append(path)
    return sorted(found)


def make_again(folder: Path) -> None:
    """Make the folder of this launcher anew if the system has removed it, as for a user who logs out, or go on without.

    Its lock stays until this process ends.
    """
    with suppress(OSError):
        folder.mkdir(mode=0o700)
        (folder / MARKER).touch()
        _lock(folder)


def _make(place: Path) -> tuple[Path, int]:
    """Make a folder of this process, and return it with its lock, which other processes see."""
    if place != SHARED_MEMORY:
        place.mkdir(parents=True, exist_ok=True)
    prefix = f"accel-memory-{_host()}-{os.getpid()}-{_start_of(os.getpid())}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    (folder / MARKER).touch()
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


def _is_dead(folder: Path) -> bool:
    """Return whether a folder is there and its launcher is not. The processes of another host cannot be seen."""
    named = NAME.fullmatch(folder.name)
    if named is None or named["host"] != _host() or not folder.is_dir():
        return False
    return _start_of(int(named["pid"])) != named["start"]


def _host() -> str:
    """Return a name of this machine, and of the processes of it that this process sees."""
    return hashlib.sha256(own_host().encode(errors="surrogateescape")).hexdigest()[:12]


def _start_of(pid: int) -> str:
    """Return when a process has started, in ticks since the start of the system, or "gone"."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape").rpartition(")")[2].split()
        except OSError:
            return "gone"
        return "gone" if fields[0] == "Z" else fields[19]
    try:
        os.kill(pid, 0)
    except OSError:
        return "gone"
    return "runs"
