"""Writes what is to be seen, in a thread: whoever reads what processes print waits for no terminal that is slow."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import final

#: bytes that may wait to be written; and once a process has failed, when its last words are to be read
WAITING, WAITING_IN_HASTE = 1 << 18, 1 << 26
#: seconds between two tries to write where there is no room
RETRY_S = 0.01


@final
class Screen:
    """Writes to descriptors of this process, in the order in which it is told to."""

    def __init__(self) -> None:
        self._todo: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._most: float = WAITING
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._write, name="accel-screen", daemon=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def show(self, to: int, content: bytes) -> None:
        """Has something written, when there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._size < self._most or self._over)
            self._todo.append((to, content))
            self._size += len(content)
            self._changed.notify_all()

    def hurry(self, most: float = WAITING_IN_HASTE) -> None:
        """From now on `show` waits only where very much is waiting."""
        with self._changed:
            self._most = max(self._most, most)
            self._changed.notify_all()

    def finish(self, timeout_s: float) -> bool:
        """Whether all is written, at the latest after so long."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._over)
                if not self._todo:
                    return
                to, content = self._todo.popleft()
            write(to, content)
            with self._changed:
                self._size -= len(content)
                self._changed.notify_all()


def write(to: int, content: bytes) -> None:
    """Writes all of it, however long that takes, unless nobody listens there any more."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(to, rest) :]
        except BlockingIOError:
            time.sleep(RETRY_S)
        except OSError:  # nobody listens any more
            return
