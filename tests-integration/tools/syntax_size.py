"""Print the size of packages in nodes of their syntax trees, which neither long lines nor comments change."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: what says how a program looks to a type checker, and not what it does
LEFT_OUT = frozenset({"annotation", "returns", "type_comment", "ctx"})
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def nodes_of(tree: ast.AST) -> int:
    """Return the number of nodes of a tree, without imports, annotations and docstrings."""
    if isinstance(tree, ast.Import | ast.ImportFrom):
        return 0
    skipped = None
    if isinstance(tree, Documented) and ast.get_docstring(tree, clean=False) is not None:
        skipped = tree.body[0]
    total = 1
    for name, value in ast.iter_fields(tree):
        if name not in LEFT_OUT:
            children = value if isinstance(value, list) else [value]
            total += sum(nodes_of(child) for child in children if isinstance(child, ast.AST) and child is not skipped)
    return total


def size_of(folder: Path) -> int:
    """Return the number of nodes of all Python files in a folder."""
    return sum(nodes_of(ast.parse(path.read_text(encoding="utf-8"))) for path in folder.rglob("*.py"))


def main(packages: Sequence[str]) -> None:
    """Print a row for each package, and their sum."""
    rows = {name: [size_of(ROOT / "packages" / name / part) for part in ("src", "tests")] for name in packages}
    rows["all packages"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    print(f"{'':18}{'source':>10}{'tests':>10}")
    for name, (source, tests) in rows.items():
        print(f"{name:18}{source:10,}{tests:10,}")


if __name__ == "__main__":
    main(sys.argv[1:])
