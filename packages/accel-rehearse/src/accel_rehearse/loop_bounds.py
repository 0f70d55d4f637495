"""End a script's loops after a few steps: training loaders after the last step, the others after a few batches."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from accel.data_loader import DataLoaderShard

from accel_rehearse.allocations import BATCHES, Allocations
from accel_rehearse.refusal import frame_of_script
from accel_rehearse.training_loop import epochs_of

#: batches of a pass in which nothing is trained
EVALUATION_BATCHES = 2
#: once all steps are made, passes over training loaders of a batch each; and how long they may take, at least, or as a
#: part of the time until then
FURTHER_PASSES, FURTHER_S, FURTHER_PART = 100, 5.0, 0.3


class RehearsalOver(BaseException):
    """The signal that a script has made its steps, and would go on for ever without further batches.

    It is no Exception, so that the handlers of a script do not catch it.
    """


class LoopBounds:
    """The end of loops.

    Args:
        steps: Optimizer steps to make.
        allocations: What is told of batches.
    """

    def __init__(self, steps: int, allocations: Allocations) -> None:
        self.steps, self._allocations = steps, allocations
        #: optimizer steps that were made, by all optimizers on average
        self.made: Callable[[], float] = lambda: 0.0
        self.backwards = 0
        #: the loaders that are trained on, with the epochs of the loop around
        self.training: dict[Any, int | None] = {}
        #: the loaders of the passes that are under way
        self.passing: list[Any] = []
        self._evaluated: weakref.WeakSet[Any] = weakref.WeakSet()
        self._began, self._done_at, self._further = time.monotonic(), 0.0, 0

    @property
    def is_done(self) -> bool:
        """True if all steps were made."""
        return self.made() >= self.steps

    @contextmanager
    def on_loaders(self) -> Iterator[None]:
        """End the passes over prepared loaders early inside the block."""
        iterate = DataLoaderShard.__iter__

        def bounded(loader: Any) -> Iterator[Any]:
            epochs = None if loader in self.training else epochs_of(frame_of_script())
            return self._pass(loader, iterate(loader), epochs)

        with patch.object(DataLoaderShard, "__iter__", bounded):
            yield

    def _pass(self, loader: Any, batches: Iterator[Any], epochs: int | None) -> Iterator[Any]:
        began_done, before, served = self.is_done, self.backwards, 0
        if began_done and loader in self.training:
            self._end_if_enough()
        self.passing.append(loader)
        try:
            for batch in batches:
                if self.backwards > before and loader not in self.training:
                    self.training[loader] = epochs
                if served and self._is_enough(loader, served, began_done=began_done):
                    return
                self._allocations.note_all(batch, BATCHES)
                served += 1
                yield batch
        finally:
            self.passing.remove(loader)
        if self.backwards > before:
            self.training.setdefault(loader, epochs)
        self._evaluated.add(loader)

    def _is_enough(self, loader: Any, served: int, *, began_done: bool) -> bool:
        """Return whether a pass that has served batches ends here."""
        if loader in self.training:
            return self.is_done
        return served >= (1 if began_done and loader in self._evaluated else EVALUATION_BATCHES)

    def _end_if_enough(self) -> None:
        self._further += 1
        now = time.monotonic()
        self._done_at = self._done_at or now
        longest = max(FURTHER_S, FURTHER_PART * (self._done_at - self._began))
        if self._further > FURTHER_PASSES or now - self._done_at > longest:
            raise RehearsalOver


def length_or_none(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is not known, as of a stream."""
    try:
        return len(loader)
    except TypeError:
        return None
