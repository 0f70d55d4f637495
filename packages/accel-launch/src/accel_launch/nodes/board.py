"""Read the board of a job and write on it, by a thread of its own. Nobody waits for an answer."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from accel_launch.nodes.board_server import AGAIN_S, GREETING
from accel_launch.nodes.message_line import MessageLine, encoded
from accel_launch.nodes.silence import LOOK_S, SILENT, Silence


class BoardLost(Exception):
    """An error as the first machine, which serves the board, is gone.

    Args:
        why: What has happened.
        own: True if this launcher itself was given up.
    """

    def __init__(self, why: str, *, own: bool = False) -> None:
        super().__init__(why)
        self.own = own


@final
class Board:
    """A copy of the board that the server keeps up to date, over a connection to it.

    Args:
        connection: Connection to the server.
        name: Name of this launcher.
    """

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self._line, self._lock = MessageLine(connection), threading.Lock()
        self._written: defaultdict[str, list[Any]] = defaultdict(list)
        #: launchers that are gone, by their names, and why
        self.gone: dict[str, str] = {}
        #: why the board is lost
        self.lost: BoardLost | None = None
        self._silence = Silence(time.monotonic())
        self._silence.hear("server")
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._greeted = self._left = False
        self._acts: dict[str, Callable[..., None]] = {
            "hello": self._begin,
            "beat": lambda: None,
            "write": lambda key, value: self._written[key].append(value),
            "gone": self._give_up,
        }
        self.tell("hello", GREETING, name)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @property
    def greeted(self) -> bool:
        """True if the server has answered."""
        return self._greeted

    def tell(self, what: str, *content: object) -> None:
        """Send the server `write` with a key and a value for all, or `note` with both for the first machine alone."""
        with self._lock:
            self._line.put(encoded(what, *content))
            self._line.flush()

    def known(self, key: str) -> Sequence[Any]:
        """Return the values that were written below a key, in the same order on all machines, as far as known here."""
        return self._written[key]

    def leave(self, timeout_s: float) -> None:
        """Send the server that this machine needs the board no longer, and return once it knows."""
        self._left = True
        self.tell("bye")
        self._thread.join(timeout_s)

    def _follow(self) -> None:
        while self.lost is None:
            self._step(AGAIN_S if self._line.full else LOOK_S)
        self._selector.close()
        self._line.close()

    def _step(self, timeout_s: float) -> None:
        """Wait once, read what has come, and give up the server if it is silent."""
        self._selector.select(timeout_s)
        self._silence.look(time.monotonic())
        self._hear(*self._line.take())
        with self._lock:
            if self.lost is None and self._silence.beat():
                self._line.put(encoded("beat"))
            self._line.flush()

    def _hear(self, messages: list[list[Any]], over: bool) -> None:
        if messages:
            self._silence.hear("server")
        for what, *content in messages:
            try:
                self._acts[what](*content)
            except (LookupError, TypeError, ValueError, AttributeError):  # no server of ours
                over = True
        if self.lost is not None:
            return
        if over:
            # a launcher that was stopped for long was given up, be there nobody left who says so
            woke = self._silence.woke and not self._left
            self.lost = BoardLost(SILENT if woke else "its launcher has ended, or the way to it", own=woke)
        elif self._silence.silent():
            self.tell("silent")
            self.lost = BoardLost(SILENT)

    def _begin(self) -> None:
        self._greeted = True

    def _give_up(self, name: str, why: str) -> None:
        self.gone[name] = why
        if name == self.name:
            self.lost = BoardLost(why, own=True)
