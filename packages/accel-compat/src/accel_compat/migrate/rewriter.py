"""The pass over a program's syntax that puts accel in place of Accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import CodeRange, PositionProvider

from accel_compat.migrate.arguments import CONFIGURATION, ELSEWHERE, rewrite_arguments
from accel_compat.migrate.differences import DIFFERENT
from accel_compat.migrate.module_name import OURS, Names
from accel_compat.migrate.peer_names import PEER, is_module, is_part, module_for, why_missing
from accel_compat.migrate.report import Kind, Note

_VERSION = "the version is that of accel, which counts its own releases"
Statement = TypeVar("Statement", cst.Import, cst.ImportFrom)


class Rewriter(cst.CSTTransformer):
    """Rewrites imports, attributes of the module and arguments; notes each, and what works differently."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.notes: set[Note] = set()
        self._in_word = False

    def visit_Import(self, node: cst.Import) -> bool:
        """Its names are no attributes."""
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Its names are no attributes."""
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        """`import accelerate`, with the submodules that the program reaches."""
        names: list[cst.ImportAlias] = []
        for alias in updated_node.names:
            full = get_full_name_for_node(alias.name) or ""
            if full.partition(".")[0] != PEER:
                names.append(alias)
                continue
            new = module_for(full)
            if not is_module(new):
                self._note(original_node, Kind.BY_HAND, f"accel has no module {new}")
            if alias.asname is not None:
                names.append(alias.with_changes(name=_dotted(new)))
                names += [_aside(one) for one in self.names.submodules if full == PEER]
            elif self.names.rename:
                reached = [*([new] if "." in new else []), *(f"{OURS}.{one}" for one in self.names.submodules)]
                names += [cst.ImportAlias(_dotted(one)) for one in dict.fromkeys(reached or [OURS])]
            else:
                # never `import accel.x`: the program may have something else by the name accel
                names.append(cst.ImportAlias(_dotted(OURS), cst.AsName(cst.Name(PEER))))
                reached = [*([new.removeprefix(f"{OURS}.")] if "." in new else []), *self.names.submodules]
                names += [_aside(one) for one in dict.fromkeys(reached)]
        changed = updated_node.with_changes(names=_separated(names))
        return self._changed(original_node, updated_node, changed)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        """`from accelerate.x import y`."""
        full = get_full_name_for_node(updated_node.module) if updated_node.module is not None else None
        if updated_node.relative or full is None or full.partition(".")[0] != PEER:
            return updated_node
        new = module_for(full)
        changed = updated_node.with_changes(module=_dotted(new))
        if isinstance(updated_node.names, cst.ImportStar):
            words = "a star brings names that cannot be checked: import the names that are used"
            self._note(original_node, Kind.BY_HAND, words)
        else:
            for alias in original_node.names if not isinstance(original_node.names, cst.ImportStar) else ():
                name = get_full_name_for_node(alias.name) or ""
                if (new, name) == (OURS, "__version__"):
                    self._note(alias, Kind.BY_HAND, _VERSION)
                self._check(alias, new, name)
                if name == "Accelerator" and self.names.adds_configuration and not _has(changed, CONFIGURATION):
                    changed = changed.with_changes(names=_with(updated_node.names, CONFIGURATION))
        return self._changed(original_node, updated_node, changed)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """`accelerate.x`, and `accelerate.utils.part` without the part."""
        full = self.names.resolved(_full_name(original_node))
        if full is None:
            return self._noted(original_node, updated_node)
        home, _, name = full.rpartition(".")
        if full == f"{PEER}.__version__":
            self._note(original_node, Kind.BY_HAND, _VERSION)
        elif is_part(full) and _full_name(original_node).partition(".")[0] in self.names.taken:
            self._note(original_node, Kind.BY_HAND, f"accel has all that is in {full} in accel.utils")
        elif is_part(full):
            value = updated_node.value
            return value.with_changes(lpar=[*updated_node.lpar, *value.lpar], rpar=[*value.rpar, *updated_node.rpar])
        elif home == PEER or is_part(home) or is_module(f"{OURS}{home.removeprefix(PEER)}"):
            self._check(original_node, module_for(home), name)
        return updated_node

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        """The word after a dot is no name of the program."""
        self._in_word = True

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        """Names may follow."""
        self._in_word = False

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        """The name of an argument is no name of the program."""
        self._in_word = True

    def leave_Arg_keyword(self, node: cst.Arg) -> None:
        """Names may follow."""
        self._in_word = False

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """The module itself; and names that work differently."""
        if original_node.value == PEER and self.names.rename and not self._in_word:
            return updated_node.with_changes(value="accel")
        member = self.names.members.get(original_node.value)
        if member in DIFFERENT:
            self._different(original_node, member)
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Arguments of the Accelerator."""
        if not self._is_accelerator(original_node.func):
            self._check_indirect(original_node)
            return updated_node
        prefix = _full_name(updated_node.func).rpartition(".")[0]
        configuration = f"{prefix}.{CONFIGURATION}" if prefix else self.names.configuration
        changed, done = rewrite_arguments(updated_node, configuration)
        for kind, words in done:
            self._note(original_node, kind, words)
        for argument in original_node.args:
            if argument.keyword is not None and argument.keyword.value in DIFFERENT:
                self._different(original_node, argument.keyword.value)
        return changed

    def _is_accelerator(self, node: cst.BaseExpression) -> bool:
        name = _full_name(node)
        return "Accelerator" in (self.names.members.get(name), (self.names.resolved(name) or "").rpartition(".")[2])

    def _check_indirect(self, call: cst.Call) -> None:
        """`partial(Accelerator, even_batches=False)`, and `super().__init__(even_batches=False)` of a class of it."""
        inits = isinstance(call.func, cst.Attribute) and call.func.attr.value == "__init__"
        if inits or any(self._is_accelerator(argument.value) for argument in call.args):
            given = [argument.keyword.value for argument in call.args if argument.keyword is not None]
            for name in [name for name in given if name in ELSEWHERE]:
                self._note(call, Kind.BY_HAND, f"{name}=... is elsewhere in accel, if it is meant for Accelerator")

    def _noted(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        if original.attr.value in DIFFERENT:
            self._different(original, original.attr.value)
        return updated

    def _check(self, node: cst.CSTNode, module: str, name: str) -> None:
        if name != "*" and (why := why_missing(module, name)) is not None:
            self._note(node, Kind.BY_HAND, why)

    def _different(self, node: cst.CSTNode, name: str) -> None:
        words, page = DIFFERENT[name]
        known = {note.words for note in self.notes}
        if (said := f"{words} ({page})") not in known:
            self._note(node, Kind.DIFFERENT, f"{said}")

    def _changed(self, original: cst.CSTNode, before: cst.CSTNode, after: Statement) -> Statement:
        old, new = (cst.Module([]).code_for_node(node) for node in (before, after))
        if old != new:
            self._note(original, Kind.CHANGED, f"{' '.join(old.split())} -> {' '.join(new.split())}")
        return after

    def _note(self, node: cst.CSTNode, kind: Kind, words: str) -> None:
        place = self.get_metadata(PositionProvider, node)
        line = place.start.line if isinstance(place, CodeRange) else 1
        self.notes.add(Note(line, kind, words))


def _full_name(node: cst.BaseExpression) -> str:
    """A name with dots; empty for all that is more than names."""
    if isinstance(node, cst.Name):
        return node.value
    before = _full_name(node.value) if isinstance(node, cst.Attribute) else ""
    return f"{before}.{node.attr.value}" if before and isinstance(node, cst.Attribute) else ""


def _aside(name: str) -> cst.ImportAlias:
    """An import of a module of accel by a name that no program has."""
    return cst.ImportAlias(_dotted(f"{OURS}.{name}"), cst.AsName(cst.Name(f"_accel_{name.replace('.', '_')}")))


def _has(node: cst.ImportFrom, name: str) -> bool:
    """Whether an import brings a name as it is."""
    names = () if isinstance(node.names, cst.ImportStar) else node.names
    return any(alias.evaluated_name == name and alias.asname is None for alias in names)


def _dotted(name: str) -> cst.Name | cst.Attribute:
    node: cst.Name | cst.Attribute = cst.Name(name.split(".")[0])
    for part in name.split(".")[1:]:
        node = cst.Attribute(node, cst.Name(part))
    return node


def _separated(names: list[cst.ImportAlias]) -> list[cst.ImportAlias]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [*(one if isinstance(one.comma, cst.Comma) else one.with_changes(comma=comma) for one in names[:-1]), last]


def _with(names: Sequence[cst.ImportAlias], name: str) -> list[cst.ImportAlias]:
    """Imported names with another name before them, which leaves commas and comments at the end as they are."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [cst.ImportAlias(cst.Name(name), comma=comma), *names]
