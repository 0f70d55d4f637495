"""Exchange messages in JSON, one in a line, with other launchers, and give up those that are silent."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast, final

from accel_launch.nodes.silence import LOOK_S, SILENT, Silence

#: bytes of one message at most: a list of thousands of machines, or a traceback
LONGEST = 64 << 20


def encoded(*message: object) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


@final
class MessageLine(asyncio.Protocol):
    """A connection to another launcher.

    Args:
        loop: The loop that reads it.
        acts: What to call for a message, by its first word: with the line, and the rest of the message.
        name: Name of the launcher; "" as long as it is unknown.
    """

    transport: asyncio.Transport

    def __init__(self, loop: MessageLoop, acts: Mapping[str, Callable[..., None]], name: str = "") -> None:
        self._loop, self.acts, self.name, self._in = loop, acts, name, bytearray()

    def connection_made(self, transport: Any) -> None:
        """Note the first sign of life."""
        self.transport = transport
        self._loop.lines.add(self)
        self._loop.silence.hear(self)

    def data_received(self, data: bytes) -> None:
        """Act on the messages that are whole. Who says what no launcher says is given up."""
        self._in += data
        if b"\n" in data:
            *messages, self._in = self._in.split(b"\n")
            self._loop.silence.hear(self)
            for message in messages:
                try:
                    what, *content = json.loads(message)
                    if self in self._loop.lines and what != "beat":
                        self.acts[what](self, *content)
                except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
                    self.connection_lost(None)
        if len(self._in) > LONGEST:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give it up, unless it was dropped."""
        if self in self._loop.lines:
            self._loop.give_up(self, "its launcher has ended, or the way to it")


@final
class MessageLoop:
    """A loop that reads the connections to other launchers. Each gives a sign of life, and has one sent, in `BEAT_S`.

    Args:
        give_up: Called with a line that is silent, has ended, or says what no launcher says, and why. It drops it.
    """

    def __init__(self, give_up: Callable[[MessageLine, str], None]) -> None:
        self.give_up = give_up
        self.events = asyncio.new_event_loop()
        self.silence = Silence(time.monotonic())
        self.lines: set[MessageLine] = set()

    def run(self) -> None:
        """Read and judge, until `events` is stopped."""
        self.events.call_soon(self._look_again)
        self.events.run_forever()

    def look(self) -> bool:
        """Give up who is silent, and send a sign of life. Return True if what others said is to be read first."""
        stopped = self.silence.look(time.monotonic())
        if not stopped:
            for line in self.silence.silent():
                self.give_up(cast(MessageLine, line), SILENT)
            if self.silence.beat():
                self.send("beat")
        return stopped

    @property
    def woke(self) -> bool:
        """True if this process has just been stopped for so long that others have given it up."""
        self.silence.look(time.monotonic())  # what has come may be read before the next look
        return self.silence.woke

    def _look_again(self) -> None:
        self.events.call_later(0 if self.look() else LOOK_S, self._look_again)

    def send(self, *message: object) -> bytes:
        """Send a message to all launchers whose names are known, and return it as it is sent."""
        content = encoded(*message)
        for line in self.lines:
            if line.name:
                line.transport.write(content)
        return content

    def drop(self, line: MessageLine) -> None:
        """Close a line. What was sent still arrives."""
        self.silence.forget(line)
        self.lines.remove(line)
        line.transport.close()
