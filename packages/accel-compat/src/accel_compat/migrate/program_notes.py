"""Note what breaks in a program for accel, and what works differently than with Accelerate."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from accel_compat.migrate.mentions import differences
from accel_compat.migrate.program_names import home_of, parsed
from accel_compat.migrate.report import Kind, Note
from accel_compat.migrate.rewrites import ARGUMENTS, OURS, is_module, why_missing


def notes_of_program(text: str, names: Mapping[str, str]) -> tuple[Note, ...]:
    """Return the notes on a program. A difference has one note, where it is first met.

    Args:
        text: Text of the program.
        names: Names that it imports from accel, each with its full name there.
    """
    return (*differences(text), *sorted(set(_notes(parsed(text), names)))) if names else ()


def _notes(tree: ast.Module, names: Mapping[str, str]) -> Iterator[Note]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = home_of(node)[:-1]
            ours = [alias.name for alias in node.names if (home or alias.name).partition(".")[0] == OURS]
            yield from _missing(node, [(home, name) if home else (name, "") for name in ours])
        elif isinstance(node, ast.Attribute):
            home, _, name = _full(node, names).rpartition(".")
            yield from _missing(node, [(home, name)] if is_module(home) else [])
        elif isinstance(node, ast.Call):
            passed = [_full(word, names) for word in (node.func, *node.args)]
            if _dotted(node.func).endswith(".__init__") or f"{OURS}.Accelerator" in passed:
                for word in (str(word.arg) for word in node.keywords if word.arg in ARGUMENTS):
                    words = f"Accelerator({word}=...) is {ARGUMENTS[word].format(word)} in accel"
                    yield Note(node.lineno, Kind.BY_HAND, words)


def _missing(node: ast.stmt | ast.expr, asked: list[tuple[str, str]]) -> Iterator[Note]:
    for module, name in asked:
        if (why := why_missing(module, name)) is not None:
            yield Note(node.lineno, Kind.BY_HAND, why)


def _full(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return the full name in accel of a name with dots, or "" if it is not of accel."""
    root, dot, rest = _dotted(node).partition(".")
    return f"{names[root]}{dot}{rest}" if root in names else ""


def _dotted(node: ast.AST) -> str:
    """Return a name with dots, or "" for all that is more than names."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f"().{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
