"""Exchange messages in JSON, one in a line, over a connection on which nobody waits."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import final

#: bytes of one message at most: a list of thousands of machines, or a traceback
LONGEST = 64 << 20
READ = 1 << 18


def encoded(*message: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


@final
class MessageLine:
    """A connection that sends and takes what the system takes and has. The rest stays for later.

    Args:
        connection: Connection to a launcher.
        acts: What to call for a message, by its first word.
        name: Name of the launcher; "" as long as it is unknown.
    """

    def __init__(self, connection: socket.socket, acts: Mapping[str, Callable[..., None]], name: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.acts, self.name = connection, acts, name
        self._out, self._in = bytearray(), bytearray()
        self._sending = threading.Lock()  # any thread may send

    @property
    def full(self) -> bool:
        """True if something is left to be sent."""
        return bool(self._out)

    def put(self, message: bytes | bytearray) -> None:
        """Add an encoded message to those that `flush` sends."""
        with self._sending:
            self._out += message

    def flush(self) -> None:
        """Send what the system takes now."""
        with self._sending:
            try:
                while self._out:
                    del self._out[: self.connection.send(self._out)]
            except BlockingIOError:
                pass
            except OSError:  # `take` tells that the other end is gone
                self._out.clear()

    def take(self) -> tuple[list[bytearray], bool]:
        """Return the messages that have come, as they were sent, and True if the other end is gone or sends no end."""
        over = False
        try:
            while len(self._in) < LONGEST and not over:
                came = self.connection.recv(READ)
                self._in += came
                over = not came
        except BlockingIOError:
            pass
        except OSError:
            over = True
        *lines, self._in = self._in.split(b"\n")
        return lines, over or len(self._in) >= LONGEST
