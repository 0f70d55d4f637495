"""Note what breaks in a program for accel, and what works differently than with Accelerate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from accel_compat.migrate.program_names import ProgramNames, home_of, parsed
from accel_compat.migrate.report import Kind, Note
from accel_compat.migrate.rewrites import ARGUMENTS, DIFFERENT, OURS, is_module, why_missing


def notes_of_program(text: str, names: ProgramNames) -> tuple[Note, ...]:
    """Return what to say of a program with these names of accel; a difference is told once, where it is first met."""
    notes = sorted(set(_notes(parsed(text), names)), reverse=True) if names.origins else []
    return tuple({(note.words, note.kind is Kind.BY_HAND and note.line): note for note in notes}.values())


def _notes(tree: ast.Module, names: ProgramNames) -> Iterator[Note]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        asked, words = list[tuple[str, str]](), list[str]()
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = home_of(node)[:-1]
            ours = [alias.name for alias in node.names if (home or alias.name).partition(".")[0] == OURS]
            asked = [(home, name) if home else (name, "") for name in ours]
        elif isinstance(node, ast.Attribute | ast.Name):
            home, _, name = names.full(_dotted(node)).rpartition(".")
            asked = [(home, name)] if isinstance(node, ast.Attribute) and is_module(home) else []
            words = [node.attr if isinstance(node, ast.Attribute) else name]
        elif isinstance(node, ast.Call):
            called = _dotted(node.func)
            passed = [names.full(_dotted(word)) for word in (node.func, *node.args)]
            if called.endswith(".__init__") or f"{OURS}.Accelerator" in passed:
                words = [str(word.arg) for word in node.keywords]
        yield from (Note(node.lineno, Kind.BY_HAND, why) for one in asked if (why := why_missing(*one)) is not None)
        for word in words:
            if word in DIFFERENT:
                yield Note(node.lineno, Kind.DIFFERENT, DIFFERENT[word])
            elif word in ARGUMENTS and isinstance(node, ast.Call):
                yield Note(node.lineno, Kind.BY_HAND, f"Accelerator({word}=...) is {ARGUMENTS[word]}=... in accel")


def _dotted(node: ast.AST) -> str:
    """Return a name with dots; empty for all that is more than names."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f"().{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
