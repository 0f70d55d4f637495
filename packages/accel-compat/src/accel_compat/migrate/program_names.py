"""Find the names that a program has for a package and its parts."""

from __future__ import annotations

import ast
import warnings

from accel_compat.migrate.report import CannotRewrite


def find_names(text: str, package: str) -> dict[str, str]:
    """Return the names that a program imports from a package, each with its full name there.

    Raises:
        CannotRewrite: It is not Python.
    """
    origins: dict[str, str] = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = home_of(node)
            for alias in node.names:
                name = f"{home}{alias.name}"
                if name.partition(".")[0] == package:
                    whole = not home and alias.asname is None
                    origins[package if whole else alias.asname or alias.name] = package if whole else name
    return origins


def home_of(node: ast.Import | ast.ImportFrom) -> str:
    """Return the module of an import `from module import names`, with a dot at its end, or "" for other imports."""
    return f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a program.

    Raises:
        CannotRewrite: It is not Python. The message has the line, if Python names one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the user's texts
            return ast.parse(text)
    except SyntaxError as error:
        raise CannotRewrite(f"line {error.lineno}: it is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotRewrite(f"it is not Python: {error}") from None
