"""Wait for a child to end, or for a signal to the job."""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self, final

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

_POLL_S = 0.02
# <asm-generic/siginfo.h>: sent by the kernel, which for these signals means by the terminal
_SI_KERNEL = 0x80


@dataclass(frozen=True, slots=True)
class SignalEvent:
    """A signal to the launcher. If the terminal sent it, every process of the job has had it too."""

    number: signal.Signals
    from_terminal: bool


class Interrupted(Exception):
    """A signal that ends the job, during a wait for something else.

    Args:
        number: The signal.
        awaited: What the launcher waited for, in words.
    """

    def __init__(self, number: signal.Signals, awaited: str) -> None:
        super().__init__(f"{number.name} in a wait for {awaited}")
        self.number, self.awaited = number, awaited


class SignalSource(ABC):
    """A source of signals to the job, between `__enter__` and `__exit__`."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    def wait(self, timeout_s: float) -> SignalEvent | None:
        """Return the next signal, or None when a child may have ended or after the timeout, which may be negative."""

    @abstractmethod
    def in_child(self) -> None:
        """Restore, between fork and exec, the signal settings that a child has inherited."""

    def pause(self, seconds: float, awaited: str = "other machines to come") -> None:
        """Let seconds pass.

        Args:
            seconds: Seconds to wait.
            awaited: What the launcher waits for, in words.

        Raises:
            Interrupted: A signal that ends the job has come.
        """
        until = time.monotonic() + seconds
        while True:
            event = self.wait(until - time.monotonic())
            if event is not None and event.number in ENDING:
                raise Interrupted(event.number, awaited)
            if event is None and time.monotonic() >= until:
                return


@final
class BlockedSignals(SignalSource):
    """A source for Linux, where signals are blocked and fetched.

    None is missed, and each says whether the terminal sent it.
    """

    _taken: set[signal.Signals]
    _mask: set[int | signal.Signals]

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Inherited: the system would throw the exit codes of our children away.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # not those that whoever started us has told us to ignore, as nohup does
        wanted = {number for number in (*ENDING, *PASSED_ON) if signal.getsignal(number) is not signal.SIG_IGN}
        self._taken = wanted | {signal.SIGCHLD}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        return self

    def __exit__(self, *error: object) -> None:
        while (event := self.wait(0)) is not None and event.number in ENDING:
            pass  # what was sent twice, as coreutils timeout does, ends this process no second time
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, timeout_s: float) -> SignalEvent | None:
        """Return the next signal. A child that ends wakes it."""
        if sys.platform == "darwin":
            raise NotImplementedError("macOS has no sigtimedwait")
        info = signal.sigtimedwait(self._taken, max(timeout_s, 0))
        # CPython gives what was in memory where the whole process was stopped until after the timeout
        if info is None or info.si_signo == signal.SIGCHLD or info.si_signo not in self._taken:
            return None
        return SignalEvent(signal.Signals(info.si_signo), from_terminal=info.si_code == _SI_KERNEL)

    def in_child(self) -> None:
        """Restore the mask that the launcher was started with."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


@final
class HandledSignals(SignalSource):
    """A source for systems other than Linux, where handlers note the signals.

    At a terminal SIGINT and SIGHUP count as the terminal's.

    Args:
        numbers: Signals to handle. A notebook handles none, and `wait` raises KeyboardInterrupt as Python does.
    """

    def __init__(self, numbers: Collection[signal.Signals] = (*ENDING, *PASSED_ON)) -> None:
        self._numbers = numbers
        self._noted: deque[signal.Signals] = deque()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda got, _: self._noted.append(signal.Signals(got)))
        return self

    def __exit__(self, *error: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def wait(self, timeout_s: float) -> SignalEvent | None:
        """Return the next signal, or None after 20 ms or the timeout."""
        if not self._noted:
            time.sleep(max(min(timeout_s, _POLL_S), 0))
        if not self._noted:
            return None
        number = self._noted.popleft()
        return SignalEvent(number, from_terminal=number in (signal.SIGINT, signal.SIGHUP) and has_terminal())

    def in_child(self) -> None:
        """Keep all as it is: a program that is started has no handlers."""


def has_terminal() -> bool:
    """Return True if a terminal controls this process, which may then be sent signals by it.

    Only the group in the foreground may read from the terminal.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def command_line_signals() -> SignalSource:
    """Return the signals of a launcher that owns its process."""
    return BlockedSignals() if sys.platform == "linux" else HandledSignals()
