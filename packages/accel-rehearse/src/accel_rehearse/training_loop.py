"""Say how long a script trains, by the loop that it is in: the epochs that it asks for."""

from __future__ import annotations

import ast
import linecache
import operator
from functools import cache
from types import FrameType
from typing import Any

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def epochs_of(frame: FrameType | None) -> int | None:
    """Return the number of epochs of the loop around a frame's line, or None if it is not plain to see.

    The loop has to be over a `range` of names, attributes and numbers.

    Args:
        frame: Frame in which a pass over a loader begins.
    """
    while frame is not None:
        loops = [
            node
            for node in ast.walk(tree_of(frame.f_code.co_filename))
            if isinstance(node, ast.For) and node.lineno < frame.f_lineno <= (node.end_lineno or 0)
        ]
        for loop in sorted(loops, key=lambda node: -node.lineno):
            for call in ast.walk(loop.iter):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
                    values = [_value(argument, frame) for argument in call.args]
                    if None not in values:
                        return len(range(*values))
        frame = frame.f_back
    return None


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file, which is empty if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the whole number of an expression, or None."""
    value: Any = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    elif isinstance(node, ast.Attribute):
        holder = _object(node.value, frame)
        value = None if holder is None else vars(holder).get(node.attr) if hasattr(holder, "__dict__") else None
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = [_value(side, frame) for side in (node.left, node.right)]
        value = None if None in sides else _OPERATORS[type(node.op)](*sides)
    return value if isinstance(value, int) else None


def _object(node: ast.expr, frame: FrameType) -> Any:
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        holder = _object(node.value, frame)
        return vars(holder).get(node.attr) if hasattr(holder, "__dict__") else None
    return None
