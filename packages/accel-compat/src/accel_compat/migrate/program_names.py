"""Find the names of Accelerate in a program, and those that accel may take."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from accel_compat.finder import PEER
from accel_compat.migrate.report import CannotRewrite
from accel_compat.migrate.rewrites import ARGUMENTS, CONFIGURATION, OURS

#: a word of a program that is the name accelerate or accel, or a text that may be an annotation or code with it
_CLASH = re.compile(rf"(?<![\w-])(?:{PEER}(?:\.\w|\Z)|accel\Z)")
#: a call of Accelerator with an argument that moved, as far as brackets are not nested twice
_MOVES = re.compile(rf"\bAccelerator\((?:[^()]|\([^()]*\))*?\b(?:{'|'.join(ARGUMENTS)})\s*=")


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """The names that a program has for Accelerate and its parts, or for accel.

    `origins` has the full name there of each name that is imported. With `rename` the program can say `accel` for the
    module; else the module keeps the name accelerate. `configuration` is the name of DataLoaderConfiguration, also if
    it has still to be imported; None if the program needs none, or the name is taken.
    """

    origins: dict[str, str]
    rename: bool
    configuration: str | None

    @property
    def imports_it(self) -> bool:
        """True if DataLoaderConfiguration has still to be imported."""
        return self.configuration not in (None, *self.origins)

    def full(self, name: str | None) -> str:
        """Return the full name there of a name with dots; empty if it is not from there."""
        root, dot, rest = (name or "").partition(".")
        return f"{self.origins[root]}{dot}{rest}" if root in self.origins else ""


def find_names(text: str, package: str = PEER) -> ProgramNames:
    """Return the names that a program has for a package and its parts.

    Raises:
        CannotRewrite: If it is no Python.
    """
    origins, words = dict[str, str](), set[str]()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = home_of(node)
            for alias in node.names:
                bound = alias.asname or (alias.name if home else alias.name.partition(".")[0])
                if f"{home}{alias.name}".partition(".")[0] == package:
                    origins[bound] = f"{home}{alias.name}" if home or alias.asname else package
                else:
                    words.add(OURS if bound == "*" else bound)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            words.add(node.id)
        elif not isinstance(node, ast.Name | ast.alias | ast.keyword | ast.Attribute):
            words.update(word for _, word in ast.iter_fields(node) if isinstance(word, str))
    configuration = next((name for name, full in origins.items() if full.endswith(f".{CONFIGURATION}")), None)
    if _MOVES.search(text) and CONFIGURATION not in words:
        configuration = configuration or CONFIGURATION
    return ProgramNames(origins, origins.get(PEER) == PEER and not any(map(_CLASH.search, words)), configuration)


def home_of(node: ast.Import | ast.ImportFrom) -> str:
    """Return what comes before the names of an import, with a dot at its end: nothing if they are modules."""
    return f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a program.

    Raises:
        CannotRewrite: If it is no Python, with the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the user's texts
            return ast.parse(text)
    except SyntaxError as error:
        raise CannotRewrite(f"line {error.lineno}: it is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotRewrite(f"it is not Python: {error}") from None
