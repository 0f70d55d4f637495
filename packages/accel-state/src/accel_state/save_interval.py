"""Read how often checkpoints are taken: in optimizer steps, or in seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: what a text may say, in words
EXPECTED = 'a whole number of optimizer steps of at least 1, or seconds such as "30s"'
_TEXT = re.compile(r"\s*([1-9][0-9]{0,17})\s*(s?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """The time between two checkpoints, in one of two units.

    Args:
        steps: Optimizer steps, or None.
        seconds: Seconds, or None.
    """

    steps: int | None = None
    seconds: int | None = None

    @classmethod
    def of(cls, value: object) -> SaveInterval | None:
        """Return the interval that a number of steps or a text means, or None if it means none."""
        found = _TEXT.fullmatch(str(value))
        if found is None:
            return None
        number = int(found[1])
        return cls(seconds=number) if found[2] else cls(steps=number)
