"""Read the board of a job and write on it, by a thread of its own. Nobody waits for an answer."""

from __future__ import annotations

import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from accel_launch.nodes.board_server import GREETING
from accel_launch.nodes.message_line import MessageLine, encoded
from accel_launch.nodes.message_loop import MessageLoop
from accel_launch.nodes.silence import SILENT


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
        self._written: defaultdict[str, list[Any]] = defaultdict(list)
        #: launchers that are gone, by their names, and why
        self.gone: dict[str, str] = {}
        #: why the board is lost
        self.lost: BoardLost | None = None
        #: True if the server has answered
        self.greeted = False
        self._left = False
        self._loop = MessageLoop(self._lose)
        acts: dict[str, Callable[..., None]] = {
            "hello": self._begin,
            "write": lambda line, key, value: self._written[key].append(value),
            "gone": self._give_up,
        }
        self._line = self._loop.add(connection, acts, "server")
        self.tell("hello", GREETING, name)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def tell(self, what: str, *content: object) -> None:
        """Send the server `write` with a key and a value for all, or `note` with both for the first machine alone."""
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
            self._loop.turn()
        self._loop.drop(self._line)

    def _lose(self, line: MessageLine, why: str) -> None:
        """Note why the board is lost, unless that is known already."""
        if why == SILENT:
            self.tell("silent")
        # a launcher that was stopped for long was given up, be there nobody left who says so
        woke = why != SILENT and self._loop.silence.woke and not self._left
        self.lost = self.lost or BoardLost(SILENT if woke else why, own=woke)

    def _begin(self, line: MessageLine) -> None:
        self.greeted = True

    def _give_up(self, line: MessageLine, name: str, why: str) -> None:
        self.gone[name] = why
        if name == self.name:
            self.lost = BoardLost(why, own=True)
