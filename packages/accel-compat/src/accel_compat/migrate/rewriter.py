"""The pass over a program's syntax that puts accel in place of Accelerate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import CodeRange, PositionProvider

from accel_compat.migrate.arguments import MOVED, rewrite_arguments
from accel_compat.migrate.differences import DIFFERENT
from accel_compat.migrate.peer_names import PEER, is_module, module_for, why_missing
from accel_compat.migrate.report import Kind, Note

_CONFIGURATION = "DataLoaderConfiguration"
#: modules of `accelerate.utils` that have the name of nothing else in it
_PARTS = re.compile(
    "ao|bnb|constants|dataclasses|deepspeed|environment|fsdp_utils|imports|launch|megatron_lm|memory|modeling|offload"
    "|operations|other|torch_xla|transformer_engine|versions"
)
Statement = TypeVar("Statement", cst.Import, cst.ImportFrom)


@dataclass(frozen=True, slots=True)
class Names:
    """How a program calls accel: by its name (`rename`), or as before; and the submodules that it reaches by it."""

    rename: bool
    submodules: tuple[str, ...] = ()


class Rewriter(cst.CSTTransformer):
    """Rewrites imports, attributes of the module and arguments; notes each, and what works differently."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.notes: set[Note] = set()
        self._aliases = {PEER}
        self._from: dict[str, str] = {}
        self._wants_configuration = self._in_word = False

    def visit_Module(self, node: cst.Module) -> None:
        """Collects the names under which the program has Accelerate and what is in it."""
        collector = _Collector()
        node.visit(collector)
        self._aliases |= collector.modules
        self._from = collector.members
        self._wants_configuration = collector.moves_arguments and _CONFIGURATION not in collector.members.values()

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
                continue
            reached = dict.fromkeys(
                [*([new] if "." in new else []), *(f"accel.{one}" for one in self.names.submodules)]
            )
            if self.names.rename:
                names += [cst.ImportAlias(_dotted(one)) for one in reached or ["accel"]]
            else:
                names += [cst.ImportAlias(_dotted(one)) for one in reached]
                names.append(cst.ImportAlias(_dotted("accel"), cst.AsName(cst.Name(PEER))))
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
                self._check(alias, new, name)
                if name == "Accelerator" and self._wants_configuration:
                    self._wants_configuration = False
                    changed = changed.with_changes(names=_with(updated_node.names, _CONFIGURATION))
        return self._changed(original_node, updated_node, changed)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """`accelerate.x`, and `accelerate.utils.part.x` without the part."""
        full = get_full_name_for_node(original_node) or ""
        root, *parts = full.split(".")
        if root != PEER or PEER not in self._aliases or not parts:
            return self._noted(original_node, updated_node)
        if len(parts) == 1 and parts[0] == "__version__":
            self._note(original_node, Kind.BY_HAND, "the version is that of accel, which counts its own releases")
        elif len(parts) == 1:
            self._check(original_node, "accel", parts[0])
        elif len(parts) == 2 and is_module(f"accel.{parts[0]}") and not _is_part(parts):
            self._check(original_node, f"accel.{parts[0]}", parts[1])
        elif len(parts) == 3 and _is_part(parts) and isinstance(updated_node.value, cst.Attribute):
            self._check(original_node, "accel.utils", parts[2])
            return updated_node.with_changes(value=updated_node.value.value)
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
        if self._from.get(original_node.value) in DIFFERENT:
            self._different(original_node, self._from[original_node.value])
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Arguments of the Accelerator."""
        full = get_full_name_for_node(original_node.func) or ""
        if self._from.get(full) != "Accelerator" and full not in {f"{one}.Accelerator" for one in self._aliases}:
            return updated_node
        prefix = f"{(get_full_name_for_node(updated_node.func) or '').rpartition('.')[0]}." if "." in full else ""
        changed, done = rewrite_arguments(updated_node, f"{prefix}{_CONFIGURATION}")
        for kind, words in done:
            self._note(original_node, kind, words)
        for argument in original_node.args:
            if argument.keyword is not None and argument.keyword.value in DIFFERENT:
                self._different(original_node, argument.keyword.value)
        return changed

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


class _Collector(cst.CSTVisitor):
    """The names of modules of Accelerate, and of what is imported out of them."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.members: dict[str, str] = {}
        self.moves_arguments = False

    def visit_ImportAlias(self, node: cst.ImportAlias) -> None:
        full = get_full_name_for_node(node.name) or ""
        if full == PEER and node.asname is not None:
            self.modules.add(get_full_name_for_node(node.asname.name) or "")

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        full = get_full_name_for_node(node.module) if node.module is not None else None
        if not node.relative and (full or "").partition(".")[0] == PEER and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                name = get_full_name_for_node(alias.name) or ""
                bound = get_full_name_for_node(alias.asname.name) if alias.asname is not None else name
                self.members[bound or name] = name
        return False

    def visit_Call(self, node: cst.Call) -> None:
        name = get_full_name_for_node(node.func) or ""
        keywords = {argument.keyword.value for argument in node.args if argument.keyword is not None}
        if self.members.get(name) == "Accelerator" and keywords & MOVED and "dataloader_config" not in keywords:
            self.moves_arguments = True


def _is_part(parts: list[str]) -> bool:
    """Whether `accelerate.utils.part` is one of Accelerate's modules, and not a name of `accelerate.utils`."""
    return parts[0] == "utils" and _PARTS.fullmatch(parts[1]) is not None


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
