"""How the launcher of one of several machines waits for others: no signal to it is missed from first to last."""

from __future__ import annotations

import time
from signal import Signals
from types import TracebackType
from typing import Self, final

from accel_launch.signals import ENDING, Inbox, PythonSignals, Received

#: seconds between two looks for signals, where something else is waited for
LOOK_S = 0.05


class Called(Exception):
    """Somebody wants the launcher to end, by this signal."""

    def __init__(self, number: Signals) -> None:
        super().__init__(number.name)
        self.number = number


@final
class Waiting(Inbox):
    """An inbox that stays open from its first `with` to the end of that one, with any others in between."""

    def __init__(self, inbox: Inbox | None = None) -> None:
        self._inbox, self._depth = inbox if inbox is not None else PythonSignals(), 0

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._inbox.__enter__()
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        while self._inbox.wait(0) is not None:
            pass  # what was sent twice, as coreutils timeout does, ends this process no second time
        self._inbox.__exit__(kind, error, trace)

    def wait(self, timeout_s: float) -> Received | None:
        """The next signal."""
        return self._inbox.wait(timeout_s)

    def in_child(self) -> None:
        """Gives a child what this process has had before the first `with`."""
        self._inbox.in_child()

    def pause(self, seconds: float) -> None:
        """Lets time pass.

        Raises: Called by the first signal that wants this process to end.
        """
        until = time.monotonic() + seconds
        while True:
            received = self._inbox.wait(max(until - time.monotonic(), 0))
            if received is not None and received.number in ENDING:
                raise Called(received.number)
            if received is None and time.monotonic() >= until:
                return
