"""Take what a training thread logs, at the cost of an append, and deliver it in another thread."""

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
    """A thread that delivers batches of entries, in order, every tenth of a second and on `flush`.

    The thread lives until `close`. The end of the interpreter flushes it. A process that is forked from this process
    has no thread, and delivers nothing.

    Args:
        deliver: Function that takes a batch of entries, in the thread.
        hold_back: Number of the newest entries to keep until more come or `flush` is called.
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
        """Return whether all entries that were put before are delivered in time.

        Args:
            timeout_s: Seconds to wait; None waits without a limit.
        """
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return True
        with self._changed:
            goal = self._delivered + self._in_flight + len(self._entries)
            self._asked = max(self._asked, goal)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._delivered >= goal, timeout_s)

    def close(self, timeout_s: float | None = None) -> int:
        """Let the thread end after the entries that were put before.

        Args:
            timeout_s: Seconds to wait for their delivery; None waits without a limit.

        Returns:
            The number of entries that were not delivered in time. The thread delivers them later.
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
