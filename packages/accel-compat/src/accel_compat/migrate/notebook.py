"""Rewrites the cells of a notebook, and nothing else in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from accel_compat.migrate.python_code import rewrite_python
from accel_compat.migrate.report import CannotRewrite, Kind, Note, Rewritten
from accel_compat.migrate.shell_commands import rewrite_commands

#: a line for the notebook and not for Python, behind what may stand for it in a program
_MAGIC = re.compile(r"^([ \t]*)([!%].*)$", re.MULTILINE)
_MASKED = re.compile(r"^([ \t]*)pass  # notebook line (\d+)$", re.MULTILINE)
_SHELL_CELL = re.compile(r"\s*%%(bash|sh|script|writefile|file)\b")


def rewrite_notebook(text: str) -> Rewritten:
    """The text of a notebook whose cells import accel; notes count lines in a cell, whose number they name.

    Raises: CannotRewrite if the text is no notebook.
    """
    try:
        content = json.loads(text)
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CannotRewrite(f"it is not a notebook: {type(error).__name__}: {error}") from None
    before = _dumped(content, text)
    programs = [_masked(source)[0] for source in sources]
    notes: list[Note] = []
    for number, (cell, source) in enumerate(zip(cells, sources, strict=True), 1):
        beside = [*programs[: number - 1], *programs[number:], ""]
        try:
            new = _rewrite_cell(source, beside)
        except CannotRewrite as error:
            if "accelerate" in source:
                notes.append(Note(1, Kind.BY_HAND, f"cell {number}: {error}"))
            continue
        notes += [replace(note, words=f"cell {number}: {note.words}") for note in new.notes]
        if new.text != source:
            cell["source"] = new.text.splitlines(keepends=True) if isinstance(cell["source"], list) else new.text
    after = _dumped(content, text)
    if after == before:
        return Rewritten(text, tuple(notes))
    if before != text:
        notes.append(Note(1, Kind.CHANGED, "the notebook is laid out as Jupyter lays out notebooks"))
    return Rewritten(after, tuple(notes))


def _rewrite_cell(source: str, beside: list[str]) -> Rewritten:
    if _SHELL_CELL.match(source):
        return rewrite_commands(source)
    program, lines = _masked(source)
    new = rewrite_python(program, beside=beside)
    commands = [rewrite_commands(line) for line in lines]
    text = _MASKED.sub(lambda found: f"{found[1]}{commands[int(found[2])].text}", new.text)
    return Rewritten(text, (*new.notes, *(note for command in commands for note in command.notes)))


def _masked(source: str) -> tuple[str, list[str]]:
    """A cell as Python, in which lines for the notebook are `pass`, and these lines."""
    lines: list[str] = []

    def mask(found: re.Match[str]) -> str:
        lines.append(found[2])
        return f"{found[1]}pass  # notebook line {len(lines) - 1}"

    return _MAGIC.sub(mask, source), lines


def _dumped(content: Any, like: str) -> str:
    """A notebook as text, laid out as before, or else as Jupyter does."""
    end = "\n" if like.endswith("\n") else ""
    original = json.loads(like)
    for indent in (1, 2, 4, None):
        for plain in (False, True):
            if json.dumps(original, indent=indent, ensure_ascii=plain) + end == like.replace("\r\n", "\n"):
                return json.dumps(content, indent=indent, ensure_ascii=plain) + end
    return json.dumps(content, indent=1, ensure_ascii=False) + end
