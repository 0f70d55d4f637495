"""Takes what a training thread logs, at the cost of an append, and hands it on in a thread of its own."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

Entry = TypeVar("Entry")

#: how long an entry may wait until the thread looks
PERIOD_S = 0.1


@final
class Pump(Generic[Entry]):
    """A thread hands batches of entries, in order, to `deliver`: every tenth of a second, or when `flush` asks.

    `hold_back` entries stay until more come or `flush` is called. The thread keeps the pump until it is closed; the
    end of the interpreter flushes it. A process that is forked from this process has no thread, and delivers nothing.
    """

    def __init__(self, deliver: Callable[[list[Entry]], None], *, hold_back: int = 0) -> None:
        self._entries: deque[Entry] = deque()
        #: takes an entry
        self.put = self._entries.append
        self._deliver = deliver
        self._hold_back = hold_back
        self._changed = threading.Condition()
        #: how many entries were delivered, are being delivered, and are to be delivered at once
        self._delivered = self._in_flight = self._asked = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="accel-track")
        self._thread.start()
        atexit.register(self._at_exit)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Whether all entries that were put before are delivered, in `timeout_s` seconds; None waits for them.

        Units: seconds.
        """
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return True
        with self._changed:
            goal = self._delivered + self._in_flight + len(self._entries)
            self._asked = max(self._asked, goal)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._delivered >= goal, timeout_s)

    def close(self, timeout_s: float | None = None) -> int:
        """How many entries were not delivered in time; the thread ends when it has delivered them.

        Units: seconds.
        """
        atexit.unregister(self._at_exit)
        self._closing = True
        if self.flush(timeout_s):
            return 0
        with self._changed:
            return self._in_flight + len(self._entries)

    def _work(self) -> None:
        while not self._closing or self._entries:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked > self._delivered, PERIOD_S)
                due = len(self._entries) - (0 if self._closing else self._hold_back)
                # others may put more meanwhile: they come with the next batch
                batch = [self._entries.popleft() for _ in range(max(due, self._asked - self._delivered))]
                self._in_flight = len(batch)
            try:
                if batch:
                    self._deliver(batch)
            finally:
                with self._changed:
                    self._delivered, self._in_flight = self._delivered + len(batch), 0
                    self._changed.notify_all()

    def _at_exit(self) -> None:
        self.flush(timeout_s=60)
