"""Find the `if` of a script that the main process enters by itself."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

from accel_comm.flight_recorder import is_ours

_MAIN = re.compile(r"(?<![\w.])(?<!not )[\w.]*\b(is_(local_)?main_process|process_index == 0)")


@dataclass(frozen=True, slots=True)
class MainBranch:
    """An `if` of a script that asks whether this is the main process.

    Args:
        site: The `if`, with its file and line.
        lines: Its lines, without those of its `else`.
        alone: Whether no other process can come to these lines.
    """

    site: str
    lines: range
    alone: bool


def find_main_branch() -> MainBranch | None:
    """Return the innermost such `if` around this call, in any function of the script that has led to it, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame):
            for branch in _branches(frame.f_code.co_filename):
                if frame.f_lineno in branch.lines and branch.lines.start >= frame.f_code.co_firstlineno:
                    return branch
        frame = frame.f_back
    return None


@lru_cache(256)
def _branches(filename: str) -> list[MainBranch]:
    """Return all of a file, inner ones first."""
    source = "".join(linecache.getlines(filename))
    try:
        nodes = (
            [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If)] if _MAIN.search(source) else []
        )
    except SyntaxError:  # no program of Python
        return []
    found = []
    for node in reversed(nodes):
        test = ast.unparse(node.test)
        if _MAIN.search(test):
            others = node.orelse or any(isinstance(part, ast.Or) for part in ast.walk(node.test))
            lines = range(node.lineno, (node.body[-1].end_lineno or 0) + 1)
            found.append(MainBranch(f"`if {test}:` at {filename}:{node.lineno}", lines, not others))
    return found
