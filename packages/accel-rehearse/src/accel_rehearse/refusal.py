"""Tell why a script cannot be rehearsed, with the line of the script that is concerned."""

from __future__ import annotations

import re
import sys
import sysconfig
from traceback import walk_tb
from types import FrameType

from accel_comm.errors import AccelError

#: folders whose lines are not the script's, and packages that may be elsewhere
_LIBRARIES = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
_PACKAGES = re.compile(r"(accel(_\w+)?|torch)(\.|$)")


class CannotRehearse(AccelError):
    """A script does what cannot be rehearsed. The message says what, and a way out."""


def is_of_script(frame: FrameType) -> bool:
    """Return whether a frame is of the user's own code, and of no library."""
    package = frame.f_globals.get("__package__") or ""
    return not (frame.f_code.co_filename.startswith(_LIBRARIES) or _PACKAGES.match(package))


def frame_of_script(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's code, or None if there is none.

    Args:
        frame: Frame to begin with. Default: that of the caller.
    """
    frame = frame or sys._getframe()
    while frame and not is_of_script(frame):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType | None = None) -> str:
    """Return the file and line of the innermost frame of the user's code, as `train.py:12`, or nothing.

    Args:
        frame: Frame to begin with. Default: that of the caller.
    """
    found = frame_of_script(frame)
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else ""


def line_of_error(error: BaseException) -> str:
    """Return the file and line of the innermost frame of the user's code that an error has passed, or nothing."""
    return line_of([*walk_tb(error.__traceback__)][-1][0])
