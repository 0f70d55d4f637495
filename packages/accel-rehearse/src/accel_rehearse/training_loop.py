"""Find how long a script trains, by the loop that it is in: the epochs that it asks for."""

from __future__ import annotations

import ast
import linecache
from functools import cache
from types import CodeType, FrameType

#: what the bounds of a loop may be made of, so that to compute them changes nothing
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)


def epochs_of(frame: FrameType | None) -> int | None:
    """Return the number of epochs of the loop around a frame's line, or None if it is not plain to see.

    The loop has to be over a `range` of names, attributes and numbers.

    Args:
        frame: Frame in which a pass over a loader begins.
    """
    while frame is not None:
        for range_of in _ranges_around(frame.f_code.co_filename, frame.f_lineno):
            found = eval(range_of, frame.f_globals, frame.f_locals)
            return len(found) if isinstance(found, range) else None
        frame = frame.f_back
    return None


@cache
def _ranges_around(file: str, line: int) -> list[CodeType]:
    """Return the ranges of the loops around a line, the innermost first."""
    calls = [
        call
        for loop in ast.walk(tree_of(file))
        if isinstance(loop, ast.For) and loop.lineno < line <= (loop.end_lineno or 0)
        for call in ast.walk(loop.iter)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "range"
        and all(isinstance(node, _PLAIN) for argument in call.args for node in ast.walk(argument))
    ]
    return [compile(ast.Expression(call), file, "eval") for call in sorted(calls, key=lambda call: -call.lineno)]


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file, which is empty if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])
