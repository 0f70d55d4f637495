"""Keep a script from changing files that were there before its rehearsal, and list those that it makes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_state.environ import process_environ

from accel_rehearse.made_files import made_in
from accel_rehearse.refusal import CannotRehearse

#: what Python calls before it changes a path, and the word for it
_CHANGES = {
    "os.remove": "remove",
    "os.rmdir": "remove",
    "shutil.rmtree": "remove",
    "os.rename": "rename or replace",
    "os.mkdir": "make",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC | os.O_CREAT
#: hidden folders and others that libraries write, and variables that name some
_FREE = re.compile(r"/(\.[^/]+|__pycache__|torchinductor_[^/]*)/|^/(dev|proc)/")
_CACHES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "XDG_CACHE_HOME",
)


class ProtectedFiles:
    """The files that were there before a rehearsal. Processes that the script forks are watched as well.

    Args:
        made: File that lists what the ranks have made.
    """

    def __init__(self, made: Path) -> None:
        self._made = made
        self._caches = tuple(process_environ()[name] for name in _CACHES if name in process_environ())
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
        """Raise if something that was there is to be changed, and list what is to be made.

        Args:
            event: Name of an event of `sys.audit`.
            args: Its arguments.

        Raises:
            CannotRehearse: The file or folder was there before the rehearsal.
        """
        if event == "open" and self._watching and not isinstance(args[0], int) and args[2] & _WRITING:
            self._change("write", os.path.realpath(os.fsdecode(args[0])))
        # a path in a folder that is given by its number is of a tree that `shutil.rmtree` has told before
        elif event in _CHANGES and self._watching and args[-1] in (-1, None):
            for name in args[: 1 + (event == "os.rename")]:
                folder, last = os.path.split(os.path.abspath(os.fsdecode(name)))
                self._change(_CHANGES[event], os.path.realpath(folder), last)

    def _change(self, verb: str, *parts: str) -> None:
        path = Path(*parts)
        if _FREE.search(str(path)) or str(path).startswith(self._caches):
            return
        if not os.path.lexists(path):
            with self._made.open("a") as file:
                file.write(f"{path}\n")
        elif verb != "make" and not {*made_in(self._made)} & {path, *path.parents}:
            raise CannotRehearse(
                f"the script is to {verb} {path}, which was there before the rehearsal: leave this out, or rehearse"
                " in a copy of the folder with --in_place, which lets the script write and remove all"
            )
