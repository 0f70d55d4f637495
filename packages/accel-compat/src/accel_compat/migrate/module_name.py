"""Decides what names a rewritten program has for Accelerate: the module is `accel`, or keeps the name it had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from accel_compat.migrate.arguments import CONFIGURATION, MOVED
from accel_compat.migrate.peer_names import PEER, is_module, is_part, module_for, why_missing

OURS = "accel"
_WORD = re.compile(rf"\b{PEER}\b")


@dataclass(slots=True)
class Names:
    """How a program has Accelerate, and how it is to have accel.

    `modules` and `members` hold what each name is in Accelerate; `taken` holds names that are something else as well.
    """

    rename: bool = False
    modules: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    submodules: tuple[str, ...] = ()
    adds_configuration: bool = False
    configuration: str | None = CONFIGURATION

    def resolved(self, name: str) -> str | None:
        """The whole name in Accelerate of a name with dots; None if it does not begin with a module of it."""
        root, dot, rest = name.partition(".")
        return f"{self.modules[root]}{dot}{rest}" if root in self.modules else None


def names_of(tree: ast.Module, beside: Sequence[ast.Module] = (), *, alone: bool = True) -> Names:
    """The names of a program, and of those in the same namespace."""
    trees = [tree, *beside]
    names = Names(rename=alone and _can_rename(tree), taken={name for one in trees for name in _bound(one)})
    homes = []
    for node in (node for one in trees for node in ast.walk(one)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_peer(alias.name):
                    names.modules[alias.asname or PEER] = alias.name if alias.asname else PEER
        elif isinstance(node, ast.ImportFrom) and _peer_modules(node):
            for alias in node.names:
                whole, bound = f"{node.module}.{alias.name}", alias.asname or alias.name
                names.members[bound] = alias.name
                if is_part(whole) or (
                    whole.count(".") == module_for(whole).count(".") and is_module(module_for(whole))
                ):
                    names.modules[bound] = whole
                if alias.name == "Accelerator":
                    homes.append(module_for(node.module or ""))
    names.adds_configuration = any(_moves(node, names) for one in trees for node in ast.walk(one))
    if CONFIGURATION in names.taken or any(why_missing(home, CONFIGURATION) for home in homes):
        names.adds_configuration, names.configuration = False, None
    names.submodules = tuple(_submodules(trees, names))
    return names


def imports_peer(tree: ast.Module) -> bool:
    """Whether a program imports Accelerate anywhere."""
    return any(map(_peer_modules, ast.walk(tree)))


def _peer_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
    return [module for module in modules if _is_peer(module)]


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the words of each text in a program that is no docstring."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def _is_peer(module: str) -> bool:
    return module.partition(".")[0] == PEER


def _can_rename(tree: ast.Module) -> bool:
    """Whether each `accelerate` in a program is the module, and the name `accel` is free.

    A text with the word may be an annotation or code; a star of another module may bring either name.
    """
    names = {
        *_bound(tree, peer=True),
        *(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == OURS),
    }
    return not names & {OURS, PEER, "*"} and not any(_WORD.search(text) for _, text in texts(tree))


def _bound(tree: ast.Module, *, peer: bool = False) -> Iterator[str]:
    """Each name that a program gives to anything, but for modules of Accelerate and what is in them.

    `peer` has other names of these too: those after `as`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases):
                for alias in aliases:
                    if not _is_peer(alias.name) or (peer and alias.asname):
                        yield alias.asname or alias.name.partition(".")[0]
            case ast.ImportFrom(names=aliases, level=level, module=module):
                if level or not _is_peer(module or ""):
                    yield from (alias.asname or alias.name for alias in aliases)
                elif peer:
                    yield from (alias.asname or "" for alias in aliases)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case _:
                pass


def _moves(node: ast.AST, names: Names) -> bool:
    """Whether a node calls Accelerator, as a name, with arguments that go into a DataLoaderConfiguration."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    given = {keyword.arg for keyword in node.keywords}
    return names.members.get(node.func.id) == "Accelerator" and bool(given & MOVED) and "dataloader_config" not in given


def _submodules(trees: Sequence[ast.Module], names: Names) -> list[str]:
    """The modules that programs reach as attributes of `accelerate`, which accel does not import by itself."""
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    reached = {
        node.attr for node in nodes if isinstance(node.value, ast.Name) and names.modules.get(node.value.id) == PEER
    }
    return sorted(name for name in reached if is_module(f"{OURS}.{name}"))
