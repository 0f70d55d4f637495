"""The packages of this repository, as the rules look at them."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"


@cache
def projects() -> dict[str, dict[str, Any]]:
    """The `[project]` table of each package, by name."""
    return {path.parent.name: tomllib.loads(path.read_text())["project"] for path in PACKAGES.glob("*/pyproject.toml")}


def import_name(package: str) -> str:
    return package.replace("-", "_")


def requirement_name(requirement: str) -> str:
    return re.split(r"[\[=<>!~ ;]", requirement)[0]


@cache
def sources(package: str) -> tuple[Path, ...]:
    return tuple(sorted((PACKAGES / package / "src").rglob("*.py")))


def all_sources() -> list[Path]:
    return [path for package in projects() for path in sources(package)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(path.parents[[p.name for p in path.parents].index("src")]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, *, module_level: bool) -> list[tuple[str, list[str]]]:
    """(module, names) of each import; names is empty for `import module`. TYPE_CHECKING blocks do not count."""
    found: list[tuple[str, list[str]]] = []

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, []) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module is not None:
                found.append((child.module, [alias.name for alias in child.names]))
            elif not (module_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
                walk(child)

    walk(tree)
    return found


@cache
def documented_methods() -> dict[str, set[str]]:
    """The methods of each public class that have docstrings; each name is that of one class."""
    classes = [node for path in all_sources() for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {one.name for one in node.body if isinstance(one, ast.FunctionDef) and ast.get_docstring(one)}
        for node in classes
        if not node.name.startswith("_")
    }


def is_described_in_base(holder: ast.AST, method: ast.AST) -> bool:
    """Whether `help` shows the docstring that a base class gives a method."""
    if not isinstance(holder, ast.ClassDef) or not isinstance(method, ast.FunctionDef):
        return False
    bases = [ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in holder.bases]
    return any(method.name in documented_methods().get(base, ()) for base in bases)


def where(path: Path, node: ast.AST | None = None) -> str:
    line = f":{node.lineno}" if node is not None and hasattr(node, "lineno") else ""
    return f"{path.relative_to(ROOT)}{line}"
