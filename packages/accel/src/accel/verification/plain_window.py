"""Counts the micro-batches of plain PyTorch: which of them ends with a step, and by what a loss is divided."""

from __future__ import annotations

from typing import final


@final
class PlainWindow:
    """The micro-batches of one optimizer step. Shares no code with what it is compared to."""

    def __init__(self, at_epoch_end: str) -> None:
        self.at_epoch_end = at_epoch_end
        self.due = True
        self.number = 0
        self.planned = 1
        #: whether all gradients of the window are there
        self.whole = False
        self.dropped = False
        self._ended = True

    def begin(self, every: int, left: int | None) -> bool:
        """Begins a micro-batch after which `left` batches of the loader come; True where it begins a window."""
        first = self._ended
        if first:
            self.number, self.whole = 0, False
            short = left is not None and self.at_epoch_end == "flush" and left + 1 < every
            self.planned = left + 1 if short and left is not None else every
        self.number += 1
        last = left == 0 and self.number < every
        self.due = self.number >= every or (last and self.at_epoch_end == "flush")
        self._ended = self.due or (last and self.at_epoch_end == "drop")
        return first

    @property
    def thrown_away(self) -> bool:
        """Whether the window ended without a step."""
        return self._ended and not self.due
