"""Rewrites the arguments of `Accelerator` that older releases of Accelerate took, and that accel takes elsewhere."""

from __future__ import annotations

import inspect

import libcst as cst
from libcst import matchers

from accel_compat.migrate.report import Kind

CONFIGURATION = "DataLoaderConfiguration"
#: arguments that belong to a DataLoaderConfiguration
MOVED = {"dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking", "use_stateful_dataloader"}
_RENAMED = {"logging_dir": "project_dir"}
#: all arguments that accel takes by another name, or in another place
ELSEWHERE = {*MOVED, *_RENAMED}


def rewrite_arguments(call: cst.Call, configuration: str | None) -> tuple[cst.Call, list[tuple[Kind, str]]]:
    """The call with accel's arguments, and notes.

    `configuration` is the name of DataLoaderConfiguration there; with None the argument is left to a person.
    """
    given = {argument.keyword.value for argument in call.args if argument.keyword is not None}
    notes: list[tuple[Kind, str]] = []
    moved: list[cst.Arg] = []
    kept: list[cst.Arg] = []
    for argument in call.args:
        name = argument.keyword.value if argument.keyword is not None else None
        if name in MOVED and configuration is None:
            kept.append(argument)
            words = f"Accelerator({name}=...) belongs into dataloader_config={CONFIGURATION}(...), a name that"
            notes.append((Kind.BY_HAND, f"{words} is taken here or is not where Accelerator is imported from"))
        elif name in MOVED and "dataloader_config" not in given:
            moved.append(argument)
        elif name in _RENAMED and _RENAMED[name] not in given:
            kept.append(argument.with_changes(keyword=cst.Name(_RENAMED[name])))
            notes.append((Kind.CHANGED, f"Accelerator({name}=...) -> {_RENAMED[name]}=..."))
        else:
            kept.append(argument)
            if name is not None and name not in _taken():
                notes.append((Kind.BY_HAND, f"Accelerator({name}=...): accel has no such argument"))
    if moved and configuration is not None:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        inner = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) for one in moved]
        value = cst.Call(cst.parse_expression(configuration), inner)
        kept.append(cst.Arg(value, cst.Name("dataloader_config"), equal))
        lost = [found for one in moved if isinstance(one.comma, cst.Comma) for found in _comments(one.comma)]
        notes += [(Kind.BY_HAND, f"a comment behind an argument is left out: {words}") for words in lost]
        names = ", ".join(one.keyword.value for one in moved if one.keyword is not None)
        notes.append((Kind.CHANGED, f"Accelerator({names}=...) -> dataloader_config={configuration}(...)"))
    if not moved and not any(kind is Kind.CHANGED for kind, _ in notes):
        return call, notes
    if len(kept) > 1 and kept[-1].comma is cst.MaybeSentinel.DEFAULT:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        kept[:-1] = [one if isinstance(one.comma, cst.Comma) else one.with_changes(comma=comma) for one in kept[:-1]]
    return call.with_changes(args=kept), notes


def _comments(node: cst.CSTNode) -> list[str]:
    return [found.value for found in matchers.findall(node, matchers.Comment()) if isinstance(found, cst.Comment)]


def _taken() -> set[str]:
    """The arguments that accel's Accelerator takes."""
    from accel import Accelerator

    return set(inspect.signature(Accelerator.__init__).parameters)
