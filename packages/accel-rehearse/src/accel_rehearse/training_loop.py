"""Find how long a script trains, by the loop that it is in: the epochs that it asks for, and where it breaks off."""

from __future__ import annotations

import ast
import linecache
import re
from contextlib import suppress
from functools import cache
from math import inf
from types import FrameType
from typing import Any


def epochs_of(frame: FrameType | None) -> int:
    """Return the number of epochs of the loop around a frame's line, or 0 if it is not plain to see.

    It is plain if one loop is over a `range`, in which nothing is called, so that to compute it changes nothing.

    Args:
        frame: Frame in which a pass over a loader begins.
    """
    while frame is not None:
        calls = [
            ast.unparse(call)
            for loop in ast.walk(tree_of(frame.f_code.co_filename))
            if isinstance(loop, ast.For) and loop.lineno < frame.f_lineno <= (loop.end_lineno or 0)
            for found in ast.walk(loop.iter)
            if ast.unparse(found).startswith("range(")
            for call in ast.walk(found)
            if isinstance(call, ast.Call)
        ]
        if calls:
            return 0 if calls[1:] else len(eval(calls[0], frame.f_globals, frame.f_locals))
        frame = frame.f_back
    return 0


def end_of(frame: Any) -> float:
    """Return the least number at which a `break` ends the loop that begins at a frame's line, or infinity.

    It is the number that a condition compares with, such as that of steps in `if step >= steps`.

    Args:
        frame: Frame in which a pass over a loader begins.
    """
    numbers = [inf]
    for loop in ast.walk(tree_of(frame.f_code.co_filename)):
        if isinstance(loop, ast.For) and loop.lineno == frame.f_lineno:
            for node in ast.walk(loop):
                if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break):
                    number = re.split(" [=>]+ ", ast.unparse(node.test))[-1]
                    with suppress(Exception):
                        if "(" not in number:
                            numbers.append(len(range(eval(number, frame.f_globals, frame.f_locals))))
    return min(filter(None, numbers))


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file of code that runs, which is empty if there is no file."""
    return ast.parse("".join(linecache.getlines(file)))
