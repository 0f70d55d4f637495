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


def where(path: Path, node: ast.AST | None = None) -> str:
    line = f":{node.lineno}" if node is not None and hasattr(node, "lineno") else ""
    return f"{path.relative_to(ROOT)}{line}"
