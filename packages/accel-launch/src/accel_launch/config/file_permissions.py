"""Find out if every user of the machine may have written a file."""

import os
import shlex
import stat
import sys
from pathlib import Path

#: file systems that have no permissions of their own, so that chmod changes nothing: Windows under WSL, SMB, USB sticks
WITHOUT_PERMISSIONS = frozenset(("9p", "cifs", "drvfs", "exfat", "fuseblk", "ntfs", "ntfs3", "smb3", "vboxsf", "vfat"))


def problem_of_open_file(descriptor: int, path: Path) -> str | None:
    """Return why an open file is refused, with the remedy, or None.

    A file is refused if every user of the machine may write to it. Its owner and a group are trusted, as they share
    settings in this way. A file system without permissions only gets a warning.
    """
    mode = os.fstat(descriptor).st_mode
    # devices, such as /dev/null, are no files
    if stat.S_ISCHR(mode) or not mode & stat.S_IWOTH:
        return None
    kind = file_system(path)
    anybody = (
        f"every user of this machine may write to it (mode {stat.S_IMODE(mode):04o}), and it decides what is started"
    )
    if kind in WITHOUT_PERMISSIONS:
        print(f"accel: warning: config file {path}: {anybody}; {kind} has no permissions", file=sys.stderr)
        return None
    return f"{anybody}: run chmod o-w {shlex.quote(str(path))}"


def file_system(path: Path) -> str:
    """Return the kind of file system that a path is on."""
    import psutil

    place = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
