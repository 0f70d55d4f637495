"""Tell why a script cannot be rehearsed, with the line of the script that is concerned."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch
from accel_comm.errors import AccelError

#: folders whose lines are not the script's
_LIBRARIES = (
    str(Path(torch.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)


class CannotRehearse(AccelError):
    """A script does what cannot be rehearsed. The message says what, and a way out."""


@cache
def is_of_script(file: str) -> bool:
    """Return whether a file is the user's own, and none of a library."""
    ours = [
        folder
        for name, module in list(sys.modules.items())
        if name == "accel" or (name.startswith("accel_") and "." not in name)
        for folder in getattr(module, "__path__", ())
    ]
    return not file.startswith(("<", *_LIBRARIES, *ours))


def frame_of_script(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's code, or None if there is none.

    Args:
        frame: Frame to begin with. Default: that of the caller.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and not is_of_script(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType | None) -> str:
    """Return the file and line of a frame, as `train.py:12`, or nothing."""
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of_error(error: BaseException) -> str:
    """Return the file and line of the innermost frame of the user's code that an error has passed, or nothing."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return line_of(frame_of_script(frames[-1]))
