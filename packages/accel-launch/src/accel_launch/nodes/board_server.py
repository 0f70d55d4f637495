"""Run the board of a job on its first machine. What machines write comes to all, in one order."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, final

from accel_launch.nodes.message_line import MessageLine, encoded
from accel_launch.nodes.message_loop import AGAIN_S, MessageLoop
from accel_launch.nodes.silence import SILENT

GREETING = "accel board 2"


@final
class BoardServer:
    """A server, in a thread of its own, that sends all that machines write to all, and gives up silent machines.

    A machine costs one connection, and a sign of life each way in `BEAT_S`.

    Args:
        listening: Socket to which machines come.
        own: Name of the launcher that serves. Others say if it is silent.
    """

    def __init__(self, listening: socket.socket, own: str) -> None:
        self._own, self._listening = own, listening
        self._written = bytearray()
        #: notes for the first machine alone, by key, in the order in which they came
        self.notes: defaultdict[str, list[Any]] = defaultdict(list)
        #: launchers that are gone, by their names, and why; those that have left are not among them
        self.gone: dict[str, str] = {}
        self._loop = MessageLoop(self._give_up)
        listening.setblocking(False)
        self._loop.watch(listening, self._accept)
        self._acts: dict[str, Callable[..., None]] = {
            "write": self._write,
            "note": lambda line, key, value: self.notes[key].append(value),
            "silent": self._accuse,
            "bye": self._loop.drop,
        }
        threading.Thread(target=self._serve, daemon=True).start()

    def leave(self, names: Collection[str], timeout_s: float) -> None:
        """Wait until these launchers have left, or are gone. What they are to read is in this process until then."""
        until, others = time.monotonic() + timeout_s, {*names} - {self._own}
        while time.monotonic() < until and self._own not in self.gone and others & self._here():
            time.sleep(AGAIN_S)

    def _here(self) -> set[str]:
        return {line.name for line in self._loop.lines.copy()}

    def _serve(self) -> None:
        while True:
            self._loop.turn()

    def _accept(self) -> None:
        try:
            self._loop.add(self._listening.accept()[0], {"hello": self._greet})
        except OSError:  # it has gone away again, or this process has as many files as it may have
            time.sleep(AGAIN_S)

    def _give_up(self, line: MessageLine, why: str) -> None:
        """Close a connection. The launcher reads why, if it ever runs again."""
        if line.name:
            self.gone[line.name] = why
            self._loop.send("gone", line.name, why)
            line.flush()
        self._loop.drop(line)

    def _greet(self, line: MessageLine, greeting: str, name: str) -> None:
        if greeting != GREETING or not name:
            raise ValueError(greeting)
        line.name, line.acts = str(name), self._acts
        line.put(encoded("hello") + self._written)

    def _write(self, line: MessageLine, key: str, value: object) -> None:
        self._written += self._loop.send("write", key, value)

    def _accuse(self, line: MessageLine) -> None:
        """Give up the launcher of this process, of which another one has heard nothing."""
        for other in self._loop.lines.copy():
            if other.name == self._own:
                self._give_up(other, SILENT)
