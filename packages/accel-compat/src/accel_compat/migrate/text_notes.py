"""Finds texts in a program that name Accelerate, which a program cannot tell from other texts."""

from __future__ import annotations

import ast
import re

from accel_compat.migrate.module_name import texts
from accel_compat.migrate.report import Kind, Note

_MODULE = re.compile(r"([A-Za-z_]\w*\.)*accelerate(\.[A-Za-z_][\w.]*)?")
_COMMAND = re.compile(r"\baccelerate[ -](launch|config|env|test|estimate-memory)\b")
_VARIABLE = re.compile(r"\bACCELERATE_[A-Z0-9_]+\b")
_SHOWN = 60


def notes_of_texts(tree: ast.Module) -> set[Note]:
    """A note for each text that is a module of Accelerate, or has a command or a variable of it."""
    notes = set()
    for line, text in texts(tree):
        if _MODULE.fullmatch(text):
            what = "a module of Accelerate, if it is meant so"
        elif _COMMAND.search(text):
            what = "a command of Accelerate: accel has the same commands"
        elif (found := _VARIABLE.search(text)) is not None:
            what = f"a variable of Accelerate: accel reads ACCEL_{found[0].removeprefix('ACCELERATE_')}, if it has it"
        else:
            continue
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        notes.add(Note(line, Kind.BY_HAND, f"the text {shown!r} names {what}"))
    return notes
