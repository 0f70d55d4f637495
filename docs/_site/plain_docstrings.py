"""Lets docstrings be plain text: Sphinx would take `*args`, |x| and names_ for markup, and labels for one paragraph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LABEL = re.compile(r"^(Shape|Units|Raises|Collective|Source):")
CODE = re.compile(r"(``?[^`]+``?)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the change of docstrings with Sphinx."""
    app.connect("autodoc-process-docstring", in_plain_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def in_plain_text(app: Sphinx, kind: str, name: str, what: object, options: object, lines: list[str]) -> None:
    """Rewrites the lines of a docstring in place."""
    text = "\n".join(lines)
    # code may go on in the next line
    parts = [part if part.startswith("`") else escaped(part) for part in CODE.split(text)]
    lines[:] = labelled("".join(parts).split("\n"))


def escaped(text: str) -> str:
    """The text, with a backslash before what could be markup; a star that begins an item of a list stays."""
    return re.sub(r"(?<!^)(?<!\n)[*|]|(?<=\w)_(?=\W|$)", r"\\\g<0>", text)


def labelled(lines: list[str]) -> list[str]:
    """The lines, in which each label stands out and begins a paragraph."""
    result = []
    for line in lines:
        if LABEL.match(line):
            result.append("")
        result.append(LABEL.sub(r"**\1:**", line))
    return result
