"""Tells whether anybody else could have written what a file says."""

import os
import shlex
import stat
import sys
from pathlib import Path

ROOT = 0


def distrust(status: os.stat_result, path: Path, user: int) -> str | None:
    """Why a user must not follow a file with this status, and what to do; None if only that user or root may write it.

    A group that may write it is trusted: groups are made for that. Devices, such as /dev/null, are no files.
    """
    if stat.S_ISCHR(status.st_mode):
        return None
    name = shlex.quote(str(path))
    if status.st_mode & stat.S_IWOTH:
        return (
            f"every user of this machine may write to it (mode {stat.S_IMODE(status.st_mode):04o}), and it decides what"
            f" is started: run chmod o-w {name}"
        )
    if status.st_uid not in (ROOT, user):
        return (
            f"it belongs to user {status.st_uid}, who could change what is started, expected user {user} or root:"
            f" make a copy of your own (cp {name} mine{path.suffix}), and name that"
        )
    return None


def problem_of_open_file(descriptor: int, path: Path) -> str | None:
    """Why this process must not follow an open file, or None; Windows has other rules, which are not looked at."""
    if sys.platform == "win32":
        return None
    return distrust(os.fstat(descriptor), path, os.geteuid())
