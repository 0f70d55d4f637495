"""Time for threads that pause: it passes when the test says so, once each thread has done what it does at that time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from accel_comm.watchdog import POLL_S, Watchdog


@final
class SimulatedTime:
    """In place of the module `time`, for watchdogs whose pauses last as long as the test lets time pass."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed = threading.Condition()
        self._pauses: list[Pause] = []

    def monotonic(self) -> float:
        """The seconds that have passed, and a thousand."""
        return self.now

    def rules(self, watchdog: Watchdog) -> Watchdog:
        """The watchdog, whose pauses are in this time from now on; not started yet."""
        watchdog._closing = pause = Pause(self, watchdog._thread)
        self._pauses.append(pause)
        return watchdog

    def settle(self) -> None:
        """Returns when every thread pauses or has ended."""
        with self.changed:
            while not all(pause.lasts() for pause in self._pauses):
                self.changed.wait(0.001)  # the end of a thread wakes nobody

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets so many seconds pass, or fewer if something is so before."""
        end = self.now + seconds
        while True:
            self.settle()
            if self.now >= end or until():
                return
            with self.changed:
                self.now += POLL_S
                self.changed.notify_all()


@final
class Pause(threading.Event):
    """The event by which a watchdog is told to close, and by which it waits for its next turn."""

    def __init__(self, time: SimulatedTime, thread: threading.Thread) -> None:
        super().__init__()
        self._time, self._thread = time, thread
        self._until: float | None = None

    def lasts(self) -> bool:
        """Whether the thread waits for a time that has not come, or does not run."""
        waits = self._until is not None and self._until > self._time.now and not self.is_set()
        return waits or not self._thread.is_alive()

    def set(self) -> None:
        """Ends the pause."""
        super().set()
        with self._time.changed:
            self._time.changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, when so much time has passed."""
        until = self._time.now + (timeout or 0.0)
        with self._time.changed:
            self._until = until
            self._time.changed.notify_all()
            self._time.changed.wait_for(lambda: self.is_set() or self._time.now >= until)
            self._until = None
        return self.is_set()
