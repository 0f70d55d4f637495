"""Choose the optimizer step after which a checkpoint in memory is due, the same on all ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import final

from accel_state.save_interval import SaveInterval


@final
class MemoryClock:
    """The steps, or the seconds, since the newest checkpoint.

    By steps, ranks that count the same steps need no exchange to ask at the same time. By seconds, each rank has a
    clock of its own: the ranks ask each other at a step that all know, and from the time of the slowest rank follows
    the step at which they ask again. It is at most as far ahead as the newest checkpoint is behind, as steps may become
    slower.

    Args:
        interval: The time between two checkpoints.
        now: The clock of this rank.
    """

    def __init__(self, interval: SaveInterval, now: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._now = interval, now
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin to count, as there is a checkpoint of this step."""
        self._began, self._began_s = step, self._now()
        self._asks = step + (self._interval.steps or 1)

    def asks(self, step: int) -> bool:
        """Return True if the ranks are to ask each other after this step."""
        if step < self._began:  # of other optimizers, as after `free_memory`
            self.begin(step)
        return step >= self._asks

    @property
    def elapsed_s(self) -> float:
        """The seconds of this rank since the newest checkpoint."""
        return self._now() - self._began_s

    def due(self, step: int, elapsed_s: float) -> bool:
        """Return True if a checkpoint is due.

        Args:
            step: The step that is over.
            elapsed_s: The seconds of the slowest rank since the newest checkpoint.
        """
        seconds, taken = self._interval.seconds, step - self._began
        if seconds is None or elapsed_s >= seconds:
            return True
        left = math.ceil((seconds - elapsed_s) * taken / max(elapsed_s, 1e-9))
        self._asks = step + min(left, taken)
        return False
