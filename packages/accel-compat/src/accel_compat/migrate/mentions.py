"""Find what breaks without Accelerate and is not rewritten: quoted names, lists of words, installers."""

from __future__ import annotations

import itertools
import re

from accel_compat.migrate.report import Kind, Note, is_comment, note_at
from accel_compat.migrate.rewrites import DIFFERENT

_INSTALL = "installs accelerate: install accel from a clone, see README.md"
_LIST = "a list of words starts Accelerate: begin it with accel"
_WORD = r"\b[^\n]*?(?<![\w./-])accelerate\b(?![-/])"
_COMMANDS = "(?:launch|config|env|test|estimate-memory)"
#: patterns of texts that any file may hold, and the words of their notes
_FORMS = {
    r"""(["'])(?:\w+\.)*accelerate(?:\.\w+)+\1""": "the text {0} names a module of Accelerate: here it is of accel",
    r"""(["'])ACCELERATE_[A-Z0-9_]+\1""": "the text {0} names a variable of Accelerate: accel's begin with ACCEL_",
    rf"""(["'])accelerate\1[ \t]*,\s*["']{_COMMANDS}""": _LIST,
    rf"""(["'])accelerate {_COMMANDS}\b[^\n]*?\1""": "the text {0} starts Accelerate: accel has the same commands",
}
#: further patterns for a file that is no program of Python
_SHELL_FORMS = {
    r"(?<!['\"\w])ACCELERATE_[A-Z0-9_]+": "{0} sets nothing in accel",
    rf"\b(?:pip[\d.]*|conda|mamba|micromamba)[ \t]+install{_WORD}": _INSTALL,
    rf"\b(?:poetry|pdm|uv|pixi)[ \t]+add{_WORD}": _INSTALL,
    r"\b(?:which|command -v|type -p)[ \t]+accelerate\b": "asks where Accelerate is: ask for accel",
    r"-m[ \t]+accelerate\.commands\.accelerate_cli\b": "runs Accelerate: python -m accel has the commands",
    r"""^[ \t]*-[ \t]+["']?accelerate["']?[ \t]*\r?$""": _LIST,
    rf"""["']accelerate["'][ \t]+{_COMMANDS}\b""": "a quoted word is Accelerate: write accel",
    r"^[ \t]*(?:import|from)[ \t]+accelerate\b": "Python inside another text imports Accelerate: import accel there",
}


def notes_of_texts(text: str, *, shell: bool = False) -> tuple[Note, ...]:
    """Return a note for each text that breaks without Accelerate, outside of comments.

    Args:
        text: Text of a file.
        shell: Whether the file is no program of Python, and may hold commands.
    """
    forms = {**_FORMS, **_SHELL_FORMS} if shell else _FORMS
    return tuple(
        note_at(text, found.start(), words.format(found[0]))
        for pattern, words in forms.items()
        for found in re.finditer(pattern, text, re.MULTILINE)
        if not is_comment(text, found.start())
    )


def differences(text: str) -> tuple[Note, ...]:
    """Return a note for each thing in a program that works differently, where it is first called or given."""
    return tuple(
        note_at(text, found.start(), words, Kind.DIFFERENT)
        for names, words in DIFFERENT.items()
        for found in itertools.islice(re.finditer(rf"^[^#\n]*\b(?:{names})[ \t]*[(=]", text, re.MULTILINE), 1)
    )
