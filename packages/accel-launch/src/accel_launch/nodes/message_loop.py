"""Read what comes over connections to launchers, and give up those that are silent, by a single thread."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import cast, final

from accel_launch.nodes.message_line import MessageLine, encoded
from accel_launch.nodes.silence import LOOK_S, SILENT, Silence

#: seconds in which what a slow connection did not take is offered again
AGAIN_S = 0.02


@final
class MessageLoop:
    """The connections to other launchers. Each gives a sign of life, and has one sent, in `BEAT_S`.

    Args:
        give_up: Called with a line that is silent, has ended, or says what no launcher says, and why. It may drop it.
    """

    def __init__(self, give_up: Callable[[MessageLine, str], None]) -> None:
        self._give_up = give_up
        self.silence = Silence(time.monotonic())
        self._selector = selectors.DefaultSelector()
        self.lines: set[MessageLine] = set()

    def watch(self, connection: socket.socket, act: Callable[[], None]) -> None:
        """Call a function whenever a socket can be read."""
        self._selector.register(connection, selectors.EVENT_READ, act)

    def add(self, connection: socket.socket, acts: Mapping[str, Callable[..., None]], name: str = "") -> MessageLine:
        """Return the line of a connection, from now on read.

        Args:
            connection: Connection to a launcher.
            acts: What to call for a message, by its first word: with the line, and the rest of the message.
            name: Name of the launcher, if it is known.
        """
        line = MessageLine(connection, acts, name)
        self.lines.add(line)
        self.silence.hear(line)
        self.watch(connection, lambda: self._read(line))
        return line

    def drop(self, line: MessageLine) -> None:
        """Close a line."""
        self._selector.unregister(line.connection)
        self.silence.forget(line)
        self.lines.remove(line)
        line.connection.close()

    def turn(self, longest_s: float = LOOK_S) -> None:
        """Wait once, act on what has come, give up who is silent, and send what is to be sent."""
        slow = any(line.full for line in self.lines)
        ready = self._selector.select(min(longest_s, AGAIN_S) if slow else longest_s)
        if self.silence.look(time.monotonic()):
            ready = self._selector.select(0)  # this process was stopped: what others said then counts first
        for key, _ in ready:
            key.data()
        for line in self.silence.silent():
            self._give_up(cast(MessageLine, line), SILENT)
        if self.silence.beat():
            self.send("beat")
        for line in self.lines:
            line.flush()

    def send(self, *message: object) -> bytes:
        """Send a message to all launchers whose names are known, and return it as it is sent."""
        content = encoded(*message)
        for line in self.lines:
            if line.name:
                line.put(content)
        return content

    def _read(self, line: MessageLine) -> None:
        messages, over = line.take()
        if messages:
            self.silence.hear(line)
        for message in messages:
            try:
                what, *content = json.loads(message)
                if line in self.lines and what != "beat":
                    line.acts[what](line, *content)
            except (LookupError, TypeError, ValueError, AttributeError, RecursionError):  # no launcher of ours
                over = True
                break
        if over and line in self.lines:
            self._give_up(line, "its launcher has ended, or the way to it")
