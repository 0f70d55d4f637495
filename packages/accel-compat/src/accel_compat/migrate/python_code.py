"""Rewrites a program of Python, and keeps all of its text that is not about Accelerate."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper

from accel_compat.migrate.module_name import imports_peer, names_of
from accel_compat.migrate.report import CannotRewrite, Rewritten
from accel_compat.migrate.rewriter import Rewriter
from accel_compat.migrate.text_notes import notes_of_texts


def rewrite_python(text: str, *, beside: Sequence[str] = ()) -> Rewritten:
    """The text of a program that imports accel; `beside` are programs in the same namespace, as cells of a notebook.

    Raises: CannotRewrite if it is no Python, with the line.
    """
    tree = parsed(text)
    notes = notes_of_texts(tree)
    others = [other for program in beside if (other := _parsed_or_none(program)) is not None]
    if not any(map(imports_peer, (tree, *others))):
        return Rewritten(text, tuple(sorted(notes)))
    rewriter = Rewriter(names_of(tree, others, alone=not beside))
    try:
        module = cst.parse_module(text)
        if module.code != text:
            raise CannotRewrite("it cannot be read without a loss: its text would change in other places")
        new = MetadataWrapper(module, unsafe_skip_copy=True).visit(rewriter).code
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotRewrite(f"it cannot be read without a loss: {str(error).splitlines()[0]}") from None
    try:
        ast.parse(new)
    except (SyntaxError, ValueError) as error:
        raise CannotRewrite(f"a rewritten file would be broken: {error}; this is a defect of accel migrate") from None
    return Rewritten(new, tuple(sorted({*notes, *rewriter.notes})))


def parsed(text: str) -> ast.Module:
    """The syntax tree of a program.

    Raises: CannotRewrite with the line at which it is no Python.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the user's texts
            return ast.parse(text)
    except SyntaxError as error:
        raise CannotRewrite(f"line {error.lineno}: it is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CannotRewrite(f"it is not Python: {error}") from None


def _parsed_or_none(text: str) -> ast.Module | None:
    try:
        return parsed(text)
    except CannotRewrite:
        return None
