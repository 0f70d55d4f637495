"""Find how long a script trains, by the loop that it is in: the epochs that it asks for."""

from __future__ import annotations

import ast
import linecache
from contextlib import suppress
from functools import cache
from types import FrameType


def epochs_of(frame: FrameType | None) -> int | None:
    """Return the number of epochs of the loop around a frame's line, or None if it is not plain to see.

    The loop has to be over a `range` in which nothing is called, so that to compute it changes nothing.

    Args:
        frame: Frame in which a pass over a loader begins.
    """
    while frame is not None:
        for bounds in _bounds_around(frame.f_code.co_filename, frame.f_lineno):
            return len(range(*(eval(bound, frame.f_globals, frame.f_locals) for bound in bounds)))
        frame = frame.f_back
    return None


@cache
def _bounds_around(file: str, line: int) -> list[list[str]]:
    """Return the bounds of the ranges of the loops around a line, the innermost first."""
    return [
        [ast.unparse(argument) for argument in call.args]
        for loop in ast.walk(tree_of(file))
        if isinstance(loop, ast.For) and loop.lineno < line <= (loop.end_lineno or 0)
        for call in ast.walk(loop.iter)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "range"
        and not any(isinstance(node, ast.Call) for argument in call.args for node in ast.walk(argument))
    ][::-1]


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file, which is empty if it cannot be read."""
    with suppress(SyntaxError):
        return ast.parse("".join(linecache.getlines(file)))
    return ast.Module([], [])
