"""The new text of a file that was migrated, and the notes on what is left to a person."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_COMMENT = re.compile(r"(?:[^'\"\n]*\s)?#")


class Kind(StrEnum):
    """The subject of a note."""

    BY_HAND = "by hand"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """A line of the report.

    Args:
        line: Number of the line in the file.
        kind: Subject of the note.
        words: What to say to a person.
    """

    line: int
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new text of a file, with notes. It is the old text if nothing was to change."""

    text: str
    notes: tuple[Note, ...] = ()


class CannotRewrite(ValueError):
    """An error for a file that is left as it is. The message says why."""


def note_at(text: str, position: int, words: str, kind: Kind = Kind.BY_HAND) -> Note:
    """Return a note on a position in a text.

    Args:
        text: The text.
        position: Index in the text.
        words: What to say to a person.
        kind: Subject of the note.
    """
    return Note(text.count("\n", 0, position) + 1, kind, words)


def is_comment(text: str, position: int) -> bool:
    """Return whether a position in a text is behind the mark of a comment, and this mark behind no quote."""
    return _COMMENT.match(text, text.rfind("\n", 0, position) + 1, position) is not None
