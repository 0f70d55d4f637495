"""Note what breaks in a program for accel, and what works differently than with Accelerate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from accel_compat.migrate.mentions import differences
from accel_compat.migrate.program_names import ProgramNames, home_of, parsed
from accel_compat.migrate.report import Kind, Note
from accel_compat.migrate.rewrites import ARGUMENTS, OURS, is_module, why_missing


def notes_of_program(text: str, names: ProgramNames) -> tuple[Note, ...]:
    """Return the notes on a program with these names of accel. A difference has one note, where it is first met."""
    return (*differences(text), *sorted(set(_notes(parsed(text), names)))) if names.origins else ()


def _notes(tree: ast.Module, names: ProgramNames) -> Iterator[Note]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = home_of(node)[:-1]
            ours = [alias.name for alias in node.names if (home or alias.name).partition(".")[0] == OURS]
            yield from _missing(node, [(home, name) if home else (name, "") for name in ours])
        elif isinstance(node, ast.Attribute):
            home, _, name = names.full(_dotted(node)).rpartition(".")
            yield from _missing(node, [(home, name)] if is_module(home) else [])
        elif isinstance(node, ast.Call):
            passed = [names.full(_dotted(word)) for word in (node.func, *node.args)]
            if _dotted(node.func).endswith(".__init__") or f"{OURS}.Accelerator" in passed:
                for word in (str(word.arg) for word in node.keywords if word.arg in ARGUMENTS):
                    words = f"Accelerator({word}=...) is {ARGUMENTS[word]}=... in accel"
                    yield Note(node.lineno, Kind.BY_HAND, words)


def _missing(node: ast.stmt | ast.expr, asked: list[tuple[str, str]]) -> Iterator[Note]:
    for module, name in asked:
        if (why := why_missing(module, name)) is not None:
            yield Note(node.lineno, Kind.BY_HAND, why)


def _dotted(node: ast.AST) -> str:
    """Return a name with dots, or "" for all that is more than names."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f"().{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
