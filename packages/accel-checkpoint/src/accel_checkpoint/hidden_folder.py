"""Lock the hidden folders beside a checkpoint, in which saves write and remove, and find those that are abandoned."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64

#: how long nothing changes in a hidden folder of another machine before it counts as abandoned
ABANDONED_AFTER_S = 24 * 3600

_NAME = re.compile(r"\.(.+)\.([0-9a-f]{8})-[0-9a-f]{8}\.(saving|old)", re.DOTALL)


class HiddenFolder(NamedTuple):
    """A hidden folder, with the parts of its name.

    Args:
        path: The folder.
        stem: Name of the checkpoint.
        machine: Digits of the machine that made it.
        kind: "saving" while a checkpoint is written or removed, "old" after another checkpoint has replaced it.
    """

    path: Path
    stem: str
    machine: str
    kind: str


def list_hidden_folders(parent: Path) -> list[HiddenFolder]:
    """List the hidden folders in a folder, the oldest first."""
    folders = []
    for path in parent.iterdir() if parent.is_dir() else []:
        with suppress(OSError):
            if (match := _NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink():
                folders.append((path.stat().st_mtime_ns, HiddenFolder(path, *match.groups())))
    return [folder for _, folder in sorted(folders)]


def hidden_path(target: Path, kind: str, tag: str | None = None) -> Path:
    """Return a path for a hidden folder beside a checkpoint.

    Args:
        target: Path of the checkpoint.
        kind: "saving" or "old".
        tag: Result of `new_tag` for a path that several processes agree on. By default the path is new.
    """
    return target.parent / f".{target.name}.{tag or new_tag()}.{kind}"


def new_tag() -> str:
    """Return the machine and a random number, which tell a hidden folder from all others."""
    return f"{this_machine()}-{secrets.token_hex(4)}"


@cache
def this_machine() -> str:
    """Return eight digits for the running system, in which processes see each other's locks."""
    try:
        system = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        system = platform.node()
    return xxh3_64(system.encode()).hexdigest()[:8]


class LockedFolder(NamedTuple):
    """A folder that this process has locked, or only opened if the file system has no locks.

    Args:
        path: The folder.
        descriptor: The open folder.
        locked: Whether the file system has locked it.
    """

    path: Path
    descriptor: int
    locked: bool

    def is_there(self) -> bool:
        """Return whether the folder still has its path: another process may have renamed or removed it."""
        try:
            return os.path.samestat(os.stat(self.descriptor), os.stat(self.path))
        except OSError:
            return False


@contextmanager
def lock_folder(path: Path, *, shared: bool = False) -> Iterator[LockedFolder]:
    """Lock a folder for other processes of this machine until the block or the process ends.

    A user of a folder shares its lock, and whoever removes the folder needs the lock alone. The lock stays if the
    folder is renamed.

    Args:
        path: The folder.
        shared: Whether other processes may share the lock.

    Raises:
        BlockingIOError: Another process has locked the folder.
        FileNotFoundError: Another process has moved the folder.
    """
    descriptor, pid = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), os.getpid()
    try:
        locked = True
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            locked = False
        folder = LockedFolder(path, descriptor, locked)
        if not folder.is_there():
            raise FileNotFoundError(errno.ENOENT, "another process has moved it", str(path))
        yield folder
    finally:
        with suppress(OSError):
            if pid == os.getpid():  # and not a fork, which shares the lock
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if the process has forked
        os.close(descriptor)


@contextmanager
def claim(folder: HiddenFolder) -> Iterator[bool]:
    """Lock a hidden folder in the block.

    A folder of this machine is used as long as its save has locked it. Locks of other machines may be invisible, also
    on a disk that machines share: a folder of another machine is used until nothing in it has changed for a day.

    Yields:
        False if a save may still use the folder.
    """
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(lock_folder(folder.path)).locked
            abandoned = (locked and folder.machine == this_machine()) or _is_outdated(folder.path)
        except (BlockingIOError, FileNotFoundError):
            abandoned = False
        yield abandoned


def _is_outdated(folder: Path) -> bool:
    try:
        newest = max(path.lstat().st_ctime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:  # it changes now
        return False
    return time.time() - newest > ABANDONED_AFTER_S
