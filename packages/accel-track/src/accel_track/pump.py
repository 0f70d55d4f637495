"""Takes what a training thread logs, at the cost of an append, and hands it on in a thread of its own."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
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
    end of the interpreter flushes it. A process that is forked from this process has a pump that takes entries and
    does nothing with them.
    """

    def __init__(self, deliver: Callable[[list[Entry]], None], *, hold_back: int = 0) -> None:
        self._entries: deque[Entry] = deque()
        self._deliver = deliver
        self._hold_back = hold_back
        self._changed = threading.Condition()
        #: how many entries were delivered, are being delivered, and are to be delivered at once
        self._delivered = self._in_flight = self._asked = 0
        self._closing = self._forked = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="accel-track")
        self._thread.start()
        pump = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _silence(pump()))
        atexit.register(self._at_exit)

    def put(self, entry: Entry) -> None:
        """Takes an entry."""
        self._entries.append(entry)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Whether all entries that were put before are delivered, in `timeout_s` seconds; None waits for them.

        Units: seconds.
        """
        if self._forked or threading.current_thread() is self._thread:
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
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked > self._delivered, PERIOD_S)
                closing = self._closing
                due = len(self._entries) - (0 if closing else self._hold_back)
                # others may put more meanwhile: they come with the next batch
                batch = [self._entries.popleft() for _ in range(max(due, self._asked - self._delivered))]
                self._in_flight = len(batch)
            if not batch:
                if closing:
                    return
                continue
            try:
                self._deliver(batch)
            finally:
                with self._changed:
                    self._delivered, self._in_flight = self._delivered + len(batch), 0
                    self._changed.notify_all()

    def _at_exit(self) -> None:
        self.flush(timeout_s=60)


def _silence(pump: Pump[Entry] | None) -> None:
    """After a fork there is no thread, and the record is the parent's."""
    if pump is not None:
        pump._forked = True
        pump._entries = deque(maxlen=0)
