"""Rewrite a program of Python, and keep all of its text that is not about Accelerate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import accumulate

from accel_compat.finder import UPSTREAM
from accel_compat.migrate.mentions import notes_of_texts
from accel_compat.migrate.program_names import find_names, parsed
from accel_compat.migrate.program_notes import notes_of_program
from accel_compat.migrate.report import Rewritten
from accel_compat.migrate.rewrites import OURS, module_for

#: a module in an import, where the syntax tree says that it begins
_MODULE = re.compile(rb"(from[\s\\]+|)[\w\x80-\xff]+(?:[\s\\]*\.[\s\\]*[\w\x80-\xff]+)*")


def rewrite_python(text: str) -> Rewritten:
    """Rewrite a program so that it imports accel.

    Raises:
        CannotRewrite: It is not Python.
    """
    new = rewrite_program(text)
    return Rewritten(new, (*notes_of_texts(text), *notes_of_program(new, find_names(new, OURS))))


def rewrite_program(text: str) -> str:
    """Return a program with accel in place of Accelerate in its imports.

    Raises:
        CannotRewrite: It is not Python.
    """
    edits = sorted(_edits(parsed(text)), reverse=True)
    content = text.encode()
    starts = list(accumulate(map(len, content.splitlines(keepends=True)), initial=0))
    for line, column, new in edits:
        start = starts[line - 1] + column
        content = content[:start] + _MODULE.sub(rb"\1" + new.encode(), content[start:], count=1)
    return content.decode()


def _edits(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Give the line and the column in bytes of each import of Accelerate, and what takes the place of its module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == UPSTREAM:
                    # without another name the name stays: the program may have something else by the name accel
                    new = module_for(alias.name) if alias.asname else f"{OURS} as {UPSTREAM}"
                    yield alias.lineno, alias.col_offset, new
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = str(node.module)
            if module.partition(".")[0] == UPSTREAM:
                yield node.lineno, node.col_offset, module_for(module)
