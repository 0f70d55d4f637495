"""What a migration of a file did, and what it left to a person."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a note is about."""

    CHANGED = "changed"
    BY_HAND = "by hand"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """One line of the report: where, and in words."""

    line: int
    kind: Kind
    words: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new text of a file, with notes; the text is the old text if nothing was to change."""

    text: str
    notes: tuple[Note, ...] = ()


class CannotRewrite(ValueError):
    """A file of which nothing can be said; the message says why."""
