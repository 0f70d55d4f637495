"""Keep a script from changing files that were there before its rehearsal, and remove those that it makes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from accel_state.environ import process_environ

from accel_rehearse.refusal import CannotRehearse

#: what changes a path
_CHANGES = ("open", "os.remove", "os.rmdir", "shutil.rmtree", "os.rename", "os.mkdir")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: hidden folders and others that libraries write, and variables that name some
_FREE = re.compile(r"/(\.[^/]+|__pycache__|torchinductor_[^/]*)/|^/(dev|proc)/")
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


def protecting(made: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook for `sys.addaudithook` that raises if what was there is to be changed, and lists what is made.

    Processes that the script forks have it as well.

    Args:
        made: File that lists what the ranks make, in a hidden folder.
    """
    caches = {Path(folder).expanduser().resolve() for folder in map(process_environ().get, _CACHES) if folder}

    def check(event: str, args: tuple[Any, ...]) -> None:
        # a path in a folder that is given by its number is of a tree that `shutil.rmtree` has told before
        if event not in _CHANGES or isinstance(args[0], int):
            return
        if not args[2] & _WRITING if event == "open" else args[-1] not in (-1, None):
            return
        for name in args[: 1 + (event == "os.rename")]:
            path = Path(os.path.abspath(os.fsdecode(name)))
            # a link is opened as what it leads to, and all else is done to itself
            path = path.resolve() if event == "open" else path.parent.resolve() / path.name
            around = {path, *path.parents}
            if _FREE.search(str(path)) or caches & around:
                continue
            if not os.path.lexists(path):
                with made.open("a") as file:
                    file.write(f"{path}\n")
            elif event != "os.mkdir" and not around.intersection(_listed(made)):
                raise CannotRehearse(
                    f"{event} is to change {path}, which was there before the rehearsal: leave this out, or rehearse in"
                    " a copy of the folder with --in_place, which lets the script write and remove all"
                )

    return check


def remove_made(made: Path) -> None:
    """Remove what a file lists and is still there. A folder in which something else is stays."""
    for path in sorted(_listed(made), reverse=True):  # what is in a folder before the folder
        for remove in (path.unlink, path.rmdir):
            with suppress(OSError):
                remove()


def _listed(made: Path) -> list[Path]:
    return [*map(Path, made.read_text().splitlines())]
