"""Exchange messages in JSON, one in a line, over a connection on which nobody waits."""

from __future__ import annotations

import json
import socket
from typing import Any, final

#: bytes of one message at most: a list of thousands of machines, or a traceback
LONGEST = 64 << 20
READ = 1 << 18


def encoded(*message: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


@final
class MessageLine:
    """A connection that sends and takes what the system takes and has. The rest stays for later."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._out, self._in = bytearray(), bytearray()

    @property
    def full(self) -> bool:
        """True if something is left to be sent."""
        return bool(self._out)

    def put(self, message: bytes | bytearray) -> None:
        """Add an encoded message to those that `flush` sends."""
        self._out += message

    def flush(self) -> None:
        """Send what the system takes now."""
        try:
            while self._out:
                del self._out[: self.connection.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:  # `take` tells that the other end is gone
            self._out.clear()

    def take(self) -> tuple[list[list[Any]], bool]:
        """Return the messages that have come, and True if the other end is gone or says what no launcher says."""
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
        *lines, rest = bytes(self._in).split(b"\n") if b"\n" in self._in else [bytes(self._in)]
        self._in = bytearray(rest)
        messages = []
        try:
            for line in lines:
                message = json.loads(line)
                messages.append([str(message[0]), *message[1:]])
        except (ValueError, LookupError, TypeError, RecursionError):
            over = True
        return messages, over or len(rest) >= LONGEST

    def close(self) -> None:
        """Close the connection. What the system has taken still arrives."""
        self.connection.close()
