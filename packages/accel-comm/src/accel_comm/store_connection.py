"""Open a connection to a store, and find out whether the process that serves the store is gone.

torch prints a traceback of C++ when a request finds the connection closed, so the connection is asked first.
"""

from __future__ import annotations

import os
import select
import weakref
from contextlib import suppress
from typing import Any, final


@final
class StoreConnection:
    """A store with a connection of its own.

    Each connection has a lock, which a request for what is not there holds until it is. Torch's requests are such, and
    so no thread is to wait for the connection of torch's group. Threads may share one whose requests all end at once.
    """

    def __init__(self, store: Any) -> None:
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        root = store
        while isinstance(root, PrefixStore):
            root = root.underlying_store
        before = _sockets()
        #: the store, over this connection
        self.store = store.clone()
        new = _sockets() - before if isinstance(root, TCPStore) else set()
        self._poll: select.poll | None = None
        if len(new) == 1:
            self._watch(new.pop())

    def _watch(self, descriptor: int) -> None:
        with suppress(OSError):
            own = os.dup(descriptor)  # stays this connection's, whatever becomes of torch's
            weakref.finalize(self, os.close, own)
            self._poll = select.poll()
            self._poll.register(own, select.POLLRDHUP)

    def is_closed(self, within_s: float = 0.0) -> bool:
        """Return whether the other end is gone, or found to be gone within some seconds."""
        return self._poll is not None and bool(self._poll.poll(1000 * within_s))


def _sockets() -> set[int]:
    descriptors = set()
    with suppress(OSError):  # a system without this folder
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    descriptors.add(int(name))
    return descriptors
