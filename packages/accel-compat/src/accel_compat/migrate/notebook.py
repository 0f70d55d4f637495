"""Rewrites the cells of a notebook, and nothing else in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import isinf
from typing import Any

from accel_compat.migrate.python_code import parsed, rewrite_python
from accel_compat.migrate.report import CannotRewrite, Kind, Note, Rewritten
from accel_compat.migrate.shell_commands import rewrite_commands

#: a line for the notebook and not for Python, behind what may stand for it in a program
_MAGIC = re.compile(r"^([ \t]*)((?:[\w, ]+=[ \t]*)?(?:!|%%?[A-Za-z_])(?:.*\\\n)*.*|[\w.]+\?\??[ \t]*)$", re.MULTILINE)
_SHELL_CELL = re.compile(r"\s*%%(bash|sh|script|writefile|file)\b")


def rewrite_notebook(text: str) -> Rewritten:
    """The text of a notebook whose cells import accel; notes count lines in a cell, whose number they name.

    Raises: CannotRewrite if the text is no notebook.
    """
    try:
        content = json.loads(text, object_pairs_hook=_object, parse_float=_float)
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CannotRewrite(f"it is not a notebook: {type(error).__name__}: {error}") from None
    before = _dumped(content, text)
    programs = [_masked(source)[1] for source in sources]
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
    word, program, lines = _masked(source)
    new = rewrite_python(program, beside=beside)
    commands = [rewrite_commands(line) for line in lines]
    text = re.sub(rf"pass  # {word} (\d+)$", lambda found: commands[int(found[1])].text, new.text, flags=re.MULTILINE)
    return Rewritten(text, (*new.notes, *(note for command in commands for note in command.notes)))


def _masked(source: str) -> tuple[str, str, list[str]]:
    """A word that a cell lacks, the cell with `pass` and this word in place of lines for the notebook, and these."""
    word = "notebook line"
    while word in source:
        word += "!"
    try:
        parsed(source)
    except CannotRewrite:
        lines: list[str] = []

        def mask(found: re.Match[str]) -> str:
            lines.append(found[2])
            return f"{found[1]}pass  # {word} {len(lines) - 1}"

        return word, _MAGIC.sub(mask, source), lines
    return word, source, []


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"it has a key twice, which is among {', '.join(sorted(found))}")
    return found


def _float(text: str) -> float:
    if isinf(number := float(text)):
        raise ValueError(f"it has the number {text}, and {text} is too large")
    return number


def _dumped(content: Any, like: str) -> str:
    """A notebook as text, laid out as before, or else as Jupyter does."""
    end = "\n" if like.endswith("\n") else ""
    original, plain_like = json.loads(like), like.replace("\r\n", "\n")
    layouts = [(indent, ascii_only) for indent in (1, 2, 4, None) for ascii_only in (False, True)]
    known = (one for one in layouts if json.dumps(original, indent=one[0], ensure_ascii=one[1]) + end == plain_like)
    # half of a pair of surrogates is text in JSON's escapes only
    indent, ascii_only = next(known, (1, re.search("\\\\u[dD][89a-fA-F]", like) is not None))
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only) + end
    return text.replace("\n", "\r\n") if plain_like != like else text
