"""Run the board of a job on its first machine. What machines write comes to all, in one order."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, cast, final

from accel_launch.nodes.message_line import MessageLine, encoded
from accel_launch.nodes.silence import LOOK_S, SILENT, Silence

#: seconds in which what a slow connection did not take is offered again
AGAIN_S = 0.02
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
        #: what was written, and what of it is still to be sent to all
        self._written, self._news = bytearray(), bytearray()
        #: notes for the first machine alone, by key, in the order in which they came
        self.notes: defaultdict[str, list[Any]] = defaultdict(list)
        #: launchers that are gone, by their names, and why; those that have left are not among them
        self.gone: dict[str, str] = {}
        self._names: dict[MessageLine, str] = {}
        self._silence = Silence(time.monotonic())
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._acts: dict[str, Callable[..., None]] = {
            "hello": self._greet,
            "beat": lambda line: None,
            "write": self._write,
            "note": lambda line, key, value: self.notes[key].append(value),
            "silent": self._accuse,
            "bye": self._drop,
        }
        threading.Thread(target=self._serve, daemon=True).start()

    def leave(self, names: Collection[str], timeout_s: float) -> None:
        """Return once these launchers have left, or are gone. What they are to read is in this process until then."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and self._own not in self.gone and not set(names).isdisjoint(self._here()):
            time.sleep(AGAIN_S)

    def _here(self) -> set[str]:
        return {*self._names.copy().values()} - {self._own}

    def _serve(self) -> None:
        while True:
            self._step(AGAIN_S if any(line.full for line in self._names) else LOOK_S)

    def _step(self, timeout_s: float) -> None:
        """Wait once, read what has come, give up who is silent, and send the news."""
        ready = self._selector.select(timeout_s)
        if self._silence.look(time.monotonic()):
            ready = self._selector.select(0)  # this process was stopped: what others said then counts first
        for key, _ in ready:
            if key.data is None:
                self._accept()
            else:
                self._read(key.data)
        for line in self._silence.silent():
            self._give_up(cast(MessageLine, line), SILENT)
        if self._silence.beat():
            self._news += encoded("beat")
        self._publish()
        for line in self._names:
            line.flush()

    def _publish(self) -> None:
        """Send the news to all who have been greeted."""
        for line, name in self._names.items():
            if name and self._news:
                line.put(self._news)
        self._news = bytearray()

    def _accept(self) -> None:
        try:
            line = MessageLine(self._listening.accept()[0])
        except OSError:  # it has gone away again, or this process has as many files as it may have
            time.sleep(AGAIN_S)
            return
        self._names[line] = ""
        self._silence.hear(line)
        self._selector.register(line.connection, selectors.EVENT_READ, line)

    def _read(self, line: MessageLine) -> None:
        messages, over = line.take()
        if messages:
            self._silence.hear(line)
        for what, *content in messages:
            if line not in self._names or not (self._names[line] or what == "hello"):
                break
            try:
                self._acts[what](line, *content)
            except (LookupError, TypeError, ValueError, AttributeError):  # no launcher of ours
                over = True
        if over and line in self._names:
            self._give_up(line, "its launcher has ended, or the way to it")

    def _give_up(self, line: MessageLine, why: str) -> None:
        """Close a connection. The launcher reads why, if it ever runs again."""
        name = self._names[line]
        if name:
            self.gone[name] = why
            self._news += encoded("gone", name, why)
            self._publish()
            line.flush()
        self._drop(line)

    def _drop(self, line: MessageLine) -> None:
        self._selector.unregister(line.connection)
        self._silence.forget(line)
        del self._names[line]
        line.close()

    def _greet(self, line: MessageLine, greeting: str, name: str) -> None:
        if greeting != GREETING or not name:
            raise ValueError(greeting)
        self._publish()  # what was written has it already
        self._names[line] = str(name)
        line.put(encoded("hello") + self._written)

    def _write(self, line: MessageLine, key: str, value: object) -> None:
        message = encoded("write", key, value)
        self._written += message
        self._news += message

    def _accuse(self, line: MessageLine) -> None:
        """Give up the launcher of this process, of which another one has heard nothing."""
        for other, name in list(self._names.items()):
            if name == self._own:
                self._give_up(other, SILENT)
