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
    """Hands batches of entries, in order, to `deliver`: by a thread, every tenth of a second, or by `flush`.

    `hold_back` entries stay until more come or `flush` is called. A process that is forked from this one has a pump
    that takes entries and does nothing with them.
    """

    def __init__(self, deliver: Callable[[list[Entry]], None], *, hold_back: int = 0) -> None:
        self._entries: deque[Entry] = deque()
        self._deliver = deliver
        self._hold_back = hold_back
        self._delivering = threading.Lock()
        self._stopping = threading.Event()
        self._forked = False
        self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._stopping), daemon=True)
        self._thread.name = "accel-track"
        self._thread.start()
        pump = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _silence(pump()))
        atexit.register(_flush, pump)

    def put(self, entry: Entry) -> None:
        """Takes an entry."""
        self._entries.append(entry)

    def flush(self, timeout_s: float = -1) -> bool:
        """Whether all entries that were put before are delivered, in `timeout_s` seconds; -1 waits as long as it takes.

        Units: seconds.
        """
        return self._drain(timeout_s, 0)

    def close(self, timeout_s: float = -1) -> int:
        """Flushes and ends the thread: how many entries were not delivered in time.

        Units: seconds.
        """
        self._stopping.set()
        flushed = self.flush(timeout_s)
        if not self._forked and self._thread is not threading.current_thread():
            self._thread.join(timeout=None if flushed else 0)
        return len(self._entries)

    def _drain(self, timeout_s: float, hold_back: int) -> bool:
        if self._forked:
            return True
        if not self._delivering.acquire(timeout=timeout_s):
            return False
        try:
            # others may put more meanwhile: they come with the next batch
            batch = [self._entries.popleft() for _ in range(len(self._entries) - hold_back)]
            if batch:
                self._deliver(batch)
        finally:
            self._delivering.release()
        return True

    def deliver_due(self) -> None:
        """Delivers what need not be held back."""
        self._drain(-1, self._hold_back)


def _work(pump: weakref.ref[Pump[Entry]], stopping: threading.Event) -> None:
    while not stopping.wait(PERIOD_S):
        found = pump()
        if found is None:
            return
        found.deliver_due()
        del found


def _silence(pump: Pump[Entry] | None) -> None:
    """After a fork there is no thread, and the record is the parent's."""
    if pump is not None:
        pump._forked = True
        pump._entries = deque(maxlen=0)


def _flush(pump: weakref.ref[Pump[Entry]]) -> None:
    found = pump()
    if found is not None:
        found.flush(timeout_s=60)
