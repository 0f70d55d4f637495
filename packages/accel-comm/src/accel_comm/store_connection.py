"""Open a connection to a store, and find out whether the process that serves the store is gone.

torch prints a traceback of C++ when a request finds the connection closed, so the connection is asked first.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from contextlib import suppress
from datetime import timedelta
from struct import pack
from typing import Any, final

#: seconds until a request is given up: the process that serves the store is stopped, or its machine is gone
ANSWER_S = 60


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
        self._store = store.clone()
        new = _sockets() - before if isinstance(root, TCPStore) else set()
        # torch's own ends before the connection is shut, and lets the next request in
        self._lock = threading.RLock()
        self._poll: select.poll | None = None
        if len(new) == 1:
            self._watch(new.pop())

    def _watch(self, descriptor: int) -> None:
        with suppress(OSError):
            own = socket.socket(fileno=os.dup(descriptor))  # stays this connection's, whatever becomes of torch's
            weakref.finalize(self, own.close)
            self._socket, self._poll = own, select.poll()
            self._poll.register(own, select.POLLRDHUP)
            own.settimeout(None)  # the default may be another
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", ANSWER_S, 0))
            self._store.set_timeout(timedelta(seconds=ANSWER_S))  # of requests that wait until something is there

    def ask(self, request: str, *words: Any) -> Any:
        """Return what the store answers to a request.

        Args:
            request: Name of a method of torch's store.
            words: Its arguments.

        Raises:
            RuntimeError: The process that serves the store is gone, or has not answered for a minute or two. Then all
                later requests raise too.
        """
        with self._lock:
            if self.is_closed():
                raise RuntimeError("its connection is closed")
            try:
                return getattr(self._store, request)(*words)
            except RuntimeError:
                if self._poll is not None:
                    with suppress(OSError):  # a late answer would be taken for that to the next request
                        self._socket.shutdown(socket.SHUT_RDWR)
                raise

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
