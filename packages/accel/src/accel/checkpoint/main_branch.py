"""Find the `if` of a script that the main process enters by itself."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

from accel_comm.flight_recorder import is_ours
from accel_state import Topology

_MAIN = re.compile(r"([\w.]+\.)?(is_(local_)?main_process(\(\))?|process_index == 0)")
_LOCAL, _CALL = "is_local_main_process", "save_state"
#: when this process began to import accel: later changes of a file are not what it runs
_BEGAN = time.time()


@dataclass(frozen=True, slots=True)
class MainBranch:
    """An `if` of a script that asks whether this is the main process.

    Args:
        site: The `if`, with its file and line.
        lines: The lines of its body.
        alone: Whether no other process can come to these lines.
        local: Whether it asks for the main process of each machine.
    """

    site: str
    lines: range
    alone: bool
    local: bool


def find_main_branch(here: Topology) -> MainBranch | None:
    """Return the innermost such `if` around this call, in any function of the script that has led to it, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame):
            for branch in _branches(frame.f_code.co_filename):
                inside = frame.f_lineno in branch.lines and branch.lines.start > frame.f_code.co_firstlineno
                if inside and (not branch.local or here.local_world_size == here.world_size):
                    return branch
        frame = frame.f_back
    return None


@lru_cache(256)
def _branches(filename: str) -> list[MainBranch]:
    """Return all of a file, inner ones first."""
    try:
        if os.stat(filename).st_mtime > _BEGAN:
            return []
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (OSError, SyntaxError):  # no file, or no program of Python
        return []
    found = []
    for node in reversed([node for node in ast.walk(tree) if isinstance(node, ast.If)]):
        mine, test = list(_questions(node.test)), ast.unparse(node.test)
        # in the test, or in both branches, the call is one of all
        if not mine or _CALL in test or any(_CALL in ast.unparse(other) for other in node.orelse):
            continue
        alone = not node.orelse and any(alone for _, alone in mine)
        lines = range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
        site = f"`if {test}:` at {filename}:{node.lineno}"
        found.append(MainBranch(site, lines, alone, all(_LOCAL in words for words, _ in mine)))
    return found


def _questions(test: ast.expr, alone: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield what a test asks of the main process, and whether nothing else makes it true."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _questions(part, alone and isinstance(test.op, ast.And))
    elif _MAIN.fullmatch(words := ast.unparse(test)):
        yield words, alone
