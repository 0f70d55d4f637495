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
    while frame:
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
    """Return the least number at which a `break` may end the loop that begins at a frame's line, or infinity.

    It is the number that a condition compares with, such as that of steps in `if step >= steps`. The rest of the
    condition counts as it is when the pass begins: with `if debug and step >= steps` nothing ends if `debug` is false.

    Args:
        frame: Frame in which a pass over a loader begins, or None if the user's code has none.
    """
    least = inf
    # of each node, the line of the innermost loop around it, which is walked last
    lines = {
        node: loop.lineno
        for loop in ast.walk(tree_of(frame.f_code.co_filename if frame else ""))
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
    }
    for node, line in lines.items():
        match node:
            case ast.If(test, [*_, ast.Break()]) if line == frame.f_lineno:
                number = re.sub(r"\S+( [^ a-z]+ \S+)* [=>]+ (?!0\b)|.*\(.*", "", ast.unparse(test))
                with suppress(Exception):
                    least = min(least, len(range(eval(number, frame.f_globals, frame.f_locals))) or inf)
    return least


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file of code that runs, which is empty if there is no such file."""
    return ast.parse("".join(linecache.getlines(file)))
