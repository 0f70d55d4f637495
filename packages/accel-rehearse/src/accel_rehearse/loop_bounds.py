"""End a script's loops after a few steps: training loaders after the last step, the others after a few batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from accel_rehearse.allocations import BATCHES, Allocations
from accel_rehearse.refusal import frame_of_script
from accel_rehearse.training_loop import epochs_of

#: batches of a pass in which nothing is trained
EVALUATION_BATCHES = 2
#: seconds for passes over training loaders of a batch each, once all steps are made
FURTHER_S = 8.0


class RehearsalOver(BaseException):
    """The signal that a script has made its steps, and would go on for ever without further batches.

    It is no Exception, so that the handlers of a script do not catch it.
    """


class LoopBounds:
    """The end of loops.

    Args:
        steps: Optimizer steps to make.
        allocations: What is told of batches.
        made: Returns the optimizer steps that were made, by all optimizers on average.
    """

    def __init__(self, steps: int, allocations: Allocations, made: Callable[[], float]) -> None:
        self.steps, self._allocations, self._made = steps, allocations, made
        self.backwards = 0
        #: the loaders that are trained on, with the epochs of the loop around
        self.training: dict[Any, int | None] = {}
        #: the loaders of the passes that are under way
        self.passing: list[Any] = []
        self._ends_at = 0.0

    @property
    def is_done(self) -> bool:
        """True if all steps were made."""
        return self._made() >= self.steps

    def bounded(self, iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        """Return the `__iter__` of prepared loaders whose passes end early."""

        def begin(loader: Any) -> Iterator[Any]:
            epochs = None if loader in self.training else epochs_of(frame_of_script())
            return self._pass(loader, iterate(loader), epochs)

        return begin

    def _pass(self, loader: Any, batches: Iterator[Any], epochs: int | None) -> Iterator[Any]:
        if self.is_done and loader in self.training:
            self._ends_at = self._ends_at or time.monotonic() + FURTHER_S
            if time.monotonic() > self._ends_at:
                raise RehearsalOver
        before = self.backwards
        self.passing.append(loader)
        try:
            for served, batch in enumerate(batches):
                if self.backwards > before:
                    self.training.setdefault(loader, epochs)
                if served and (self.is_done if loader in self.training else served >= EVALUATION_BATCHES):
                    return
                self._allocations.note_all(batch, BATCHES)
                yield batch
        finally:
            self.passing.remove(loader)
            if self.backwards > before:
                self.training.setdefault(loader, epochs)


def length_or_none(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is not known, as of a stream."""
    with suppress(TypeError):
        return len(loader)
    return None
