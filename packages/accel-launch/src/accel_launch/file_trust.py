"""Tells whether anybody at all could have written what a file says."""

import os
import shlex
import stat
import sys
from pathlib import Path


def problem_of_open_file(descriptor: int, path: Path) -> str | None:
    """Why nobody should follow an open file, and what to do; None unless every user of the machine may write to it.

    Its owner and a group are trusted: they share settings by this. Windows has other rules, which are not looked at.
    """
    mode = os.fstat(descriptor).st_mode
    # devices, such as /dev/null, are no files
    if sys.platform == "win32" or stat.S_ISCHR(mode) or not mode & stat.S_IWOTH:
        return None
    return (
        f"every user of this machine may write to it (mode {stat.S_IMODE(mode):04o}), and it decides what is started:"
        f" run chmod o-w {shlex.quote(str(path))}"
    )
