"""Decides what name the module `accelerate` has in a rewritten program: `accel`, or the name it had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from accel_compat.migrate.peer_names import PEER, is_module

OURS = "accel"
_TEXT = re.compile(rf"{PEER}(\.[\w.]+)?")


def imports_peer(tree: ast.Module) -> bool:
    """Whether a program imports Accelerate anywhere."""
    return any(_peer_modules(node) for node in ast.walk(tree))


def _peer_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
    return [module for module in modules if module.partition(".")[0] == PEER]


def can_rename(tree: ast.Module) -> bool:
    """Whether each `accelerate` in a program is the module, and the name `accel` is free.

    A text that is `accelerate.x` may be an annotation, which an editor reads as code.
    """
    names = list(_bound(tree))
    loads = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    free = OURS not in (*names, *loads) and PEER not in names
    return free and not any(_TEXT.fullmatch(text) for text in texts)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Each name that a program gives to anything, but for `import accelerate` itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=module, asname=None):
                if module.partition(".")[0] != PEER:
                    yield module.partition(".")[0]
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case _:
                pass


def submodules_used(trees: Iterable[ast.Module]) -> list[str]:
    """The modules of accel that programs reach as attributes of `accelerate`, which accel does not import by itself."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == PEER:
                found.add(node.attr)
    return sorted(name for name in found if is_module(f"{OURS}.{name}"))
