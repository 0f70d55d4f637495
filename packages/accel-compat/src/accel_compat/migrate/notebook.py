"""Rewrite the cells of a notebook, and no other byte of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from uuid import uuid4

from accel_compat.migrate.mentions import notes_of_texts
from accel_compat.migrate.program_names import find_names, parsed
from accel_compat.migrate.program_notes import notes_of_program
from accel_compat.migrate.python_code import rewrite_program
from accel_compat.migrate.report import CannotRewrite, Kind, Note, Rewritten
from accel_compat.migrate.rewrites import OURS
from accel_compat.migrate.shell_commands import rewrite_commands

#: a line for the notebook and not for Python, behind what may stand for it in a program; or a whole cell
_MAGIC = re.compile(r"^([ \t]*)((?:[\w, ]+=[ \t]*)?(?:!|%%?[A-Za-z_])(?:.*\\\n)*.*|[\w.]+\?\??[ \t]*)$", re.MULTILINE)
_SHELL_CELL = re.compile(r"\A()(\s*%%(?:bash|sh|script|writefile|file)\b[\s\S]*)")
_SOURCE = re.compile(r'"source"\s*:\s*')


def rewrite_notebook(text: str) -> Rewritten:
    """Rewrite the code cells of a notebook.

    The line of a note is that in its cell, and its words name the number of the cell among code cells.

    Raises:
        CannotRewrite: The text is no notebook.
    """
    try:
        content = json.loads(text)["cells"]
        cells = ["".join(cell["source"]) for cell in content if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CannotRewrite(f"it is not a notebook: {type(error).__name__}: {error}") from None
    notes: list[Note] = []
    programs: list[str] = []
    # no program has this word; what comes after it is what it stands for
    mark = f"pass  # {uuid4().hex} "

    def mask(found: re.Match[str]) -> str:
        new = rewrite_commands(found[2])
        before = found.string.count("\n", 0, found.start(2))
        note(len(programs) + 1, (replace(one, line=one.line + before) for one in new.notes))
        return f"{found[1]}{mark}{json.dumps(new.text)}"

    def note(cell: int, found: Iterable[Note]) -> None:
        notes.extend(replace(one, words=f"code cell {cell}: {one.words}") for one in found)

    for cell in cells:
        program = cell if _is_program(cell) else (_SHELL_CELL if _SHELL_CELL.match(cell) else _MAGIC).sub(mask, cell)
        if not _is_program(program):
            note(len(programs) + 1, [Note(1, Kind.BY_HAND, "it is not Python")] if "accelerate" in cell else [])
            program = f"{mark}{json.dumps(cell)}"
        programs.append(program)
    programs = [rewrite_program(program) for program in programs]
    names = find_names("\n".join(programs), OURS)
    for number, program in enumerate(programs, 1):
        note(number, (*notes_of_texts(program), *notes_of_program(program, names)))
    sources = (re.sub(rf"{mark}(.*)", lambda found: str(json.loads(found[1])), program) for program in programs)
    out, done = "", 0
    for one in content:
        start, end = _place(text, done, one["source"])
        new = next(sources) if one["cell_type"] == "code" else "".join(one["source"])
        literal = text[start:end] if new == "".join(one["source"]) else _literal(text[start:end], new)
        out, done = out + text[done:start] + literal, end
    return Rewritten(out + text[done:], tuple(notes))


def _is_program(text: str) -> bool:
    try:
        parsed(text)
    except CannotRewrite:
        return False
    return True


def _place(text: str, start: int, source: object) -> tuple[int, int]:
    """Return where the source of the next cell with this source begins and ends in the text of a notebook."""
    for found in _SOURCE.finditer(text, start):
        value, end = json.JSONDecoder().raw_decode(text, found.end())
        if value == source:
            return found.end(), end
    raise CannotRewrite("it is not a notebook: its cells are not in the order of its text")


def _literal(old: str, source: str) -> str:
    """Return a cell as JSON, laid out as it was."""
    if old.startswith('"'):
        return json.dumps(source, ensure_ascii=old.isascii())
    lines = [json.dumps(line, ensure_ascii=old.isascii()) for line in source.splitlines(keepends=True)]
    head, tail = old[: old.index('"')], old[old.rindex('"') + 1 :]
    return head + f",{head[1:] or ' '}".join(lines) + tail
