"""Find the names that a program has for Accelerate, or for accel, and their parts."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from accel_compat.finder import UPSTREAM
from accel_compat.migrate.report import CannotRewrite
from accel_compat.migrate.rewrites import ARGUMENTS, CONFIGURATION

#: a call of Accelerator with an argument that moved, as far as brackets are not nested twice
_MOVES = re.compile(rf"\bAccelerator\((?:[^()]|\([^()]*\))*?\b(?:{'|'.join(ARGUMENTS)})\s*=")


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """The names that a program has for Accelerate and its parts, or for accel.

    Args:
        origins: Full name in that package of each name that is imported.
        configuration: The name of DataLoaderConfiguration, also if it has still to be imported; None if the program
            needs none, or has something else by this name.
    """

    origins: dict[str, str]
    configuration: str | None

    @property
    def imports_it(self) -> bool:
        """True if DataLoaderConfiguration has still to be imported."""
        return self.configuration not in (None, *self.origins)

    def full(self, name: str | None) -> str:
        """Return the full name in the package of a name with dots, or "" if it is not of the package."""
        root, dot, rest = (name or "").partition(".")
        return f"{self.origins[root]}{dot}{rest}" if root in self.origins else ""


def find_names(text: str, package: str = UPSTREAM) -> ProgramNames:
    """Return the names that a program has for a package and its parts.

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
    configuration = next((name for name, full in origins.items() if full.endswith(f".{CONFIGURATION}")), None)
    if CONFIGURATION not in text and _MOVES.search(text):
        configuration = CONFIGURATION
    return ProgramNames(origins, configuration)


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
