"""Keep a script from changing files that were there before its rehearsal, and mark those that it makes."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_state.environ import process_environ

from accel_rehearse.refusal import CannotRehearse

#: what Python calls before it changes a path: the word for it, and where the path and the folder around it are given
_CHANGES = {
    "os.remove": ("remove", ((0, 1),)),
    "os.rmdir": ("remove", ((0, 1),)),
    "shutil.rmtree": ("remove", ((0, 1),)),
    "os.rename": ("rename or replace", ((0, 2), (1, 3))),
    "os.truncate": ("truncate", ((0, 2),)),
    "os.mkdir": ("", ((0, 2),)),
    "os.symlink": ("", ((1, 2),)),
    "os.link": ("", ((1, 3),)),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC | os.O_CREAT
#: variables and folders of caches, which libraries write
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


class ProtectedFiles:
    """The files that were there before a rehearsal. Processes that the script forks are watched as well.

    Args:
        marks: Folder in which the ranks mark what they make.
    """

    def __init__(self, marks: Path) -> None:
        here, environ = Path.cwd(), process_environ()
        self._marks, self._home, self._here = marks.resolve(), Path.home().resolve(), (here, *here.parents)
        caches = [Path(environ[name]).resolve() for name in _CACHES if environ.get(name)]
        self._free = [self._marks, *caches, Path("/dev"), Path("/proc")]
        self._watching = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Refuse changes inside the block."""
        sys.addaudithook(self.check)
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    def check(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise if something that was there is to be changed, and mark what is to be made.

        Args:
            event: Name of an event of `sys.audit`.
            args: Its arguments.

        Raises:
            CannotRehearse: The file or folder was there before the rehearsal.
        """
        if not self._watching:
            return
        if event == "open":
            if isinstance(args[0], int) or not args[2] & _WRITING:
                return
            self._change("write", Path(os.path.realpath(os.fsdecode(args[0]))))
        elif event in _CHANGES:
            verb, places = _CHANGES[event]
            for name, folder in places:
                if not isinstance(args[name], int):
                    around = args[folder] if folder < len(args) else None
                    self._change(verb, _place(os.fsdecode(args[name]), around))

    def _change(self, verb: str, path: Path) -> None:
        if self._is_of_library(path):
            return
        if not os.path.lexists(path):
            self._mark(path).write_text(str(path))
        elif verb and not any(self._mark(one).exists() for one in (path, *path.parents)):
            raise CannotRehearse(
                f"the script is to {verb} {path}, which was there before the rehearsal: leave this out, or rehearse"
                " in a copy of the folder with --in_place, which lets the script write and remove all"
            )

    def _mark(self, path: Path) -> Path:
        return self._marks / hashlib.sha256(os.fsencode(path)).hexdigest()

    def _is_of_library(self, path: Path) -> bool:
        if any(part == "__pycache__" or part.startswith("torchinductor_") for part in path.parts):
            return True
        # hidden folders of the home have caches and settings
        hidden = [one for one in path.parents if one.parent == self._home and one.name.startswith(".")]
        return any(path.is_relative_to(one) for one in self._free) or any(one not in self._here for one in hidden)


def _place(name: str, folder: int | None) -> Path:
    """Return the path of what is changed, which may be a link."""
    path = Path(os.getcwd() if folder is None or folder < 0 else f"/proc/self/fd/{folder}", name)
    return Path(os.path.realpath(path)) if path.name == ".." else Path(os.path.realpath(path.parent), path.name)
