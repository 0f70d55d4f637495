"""Finds commands of Accelerate in forms that are not rewritten: lists of words, quoted words, installers."""

from __future__ import annotations

import re

from accel_compat.migrate.report import Kind, Note

_INSTALL = "installs accelerate: install accel from a clone, see README.md"
_LIST = "a list of words starts Accelerate: begin it with accel"
#: what a line may hold, and what to do
_FORMS = (
    (
        re.compile(r"\b(?:pip[\d.]*|conda|mamba|micromamba)[ \t]+install\b[^\n]*?(?<![\w./-])accelerate\b(?![-/])"),
        _INSTALL,
    ),
    (re.compile(r"\b(?:poetry|pdm|uv|pixi)[ \t]+add\b[^\n]*?(?<![\w./-])accelerate\b(?![-/])"), _INSTALL),
    (re.compile(r"\b(?:which|command -v|type -p)[ \t]+accelerate\b"), "asks where Accelerate is: ask for accel"),
    (
        re.compile(r"-m[ \t]+accelerate\.commands\.accelerate_cli\b"),
        "runs Accelerate: python -m accel has the commands",
    ),
    (re.compile(r"""["']accelerate["'][ \t]*,"""), _LIST),
    (re.compile(r"""^[ \t]*-[ \t]+["']?accelerate["']?[ \t]*\r?$""", re.MULTILINE), _LIST),
    (
        re.compile(r"""["']accelerate["'][ \t]+(?:launch|config|env|test)\b"""),
        "a quoted word is Accelerate: write accel",
    ),
)
_COMMENT = re.compile(r"^[ \t]*#")


def notes_of_mentions(text: str) -> list[Note]:
    """A note for each of these forms, outside of comments."""
    notes = []
    lines = text.splitlines()
    for pattern, words in _FORMS:
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            if not _COMMENT.match(lines[line - 1]):
                notes.append(Note(line, Kind.BY_HAND, words))
    return notes
