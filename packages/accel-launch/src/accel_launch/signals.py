"""How the launcher waits: for a child to end, or for a signal that somebody sends to the job."""

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self, final

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)

_POLL_S = 0.02
# <asm-generic/siginfo.h>: sent by the kernel, which for these signals means by the terminal
_SI_KERNEL = 0x80


@dataclass(frozen=True, slots=True)
class Received:
    """A signal to the launcher; from the terminal, every process of the job has had it too."""

    number: signal.Signals
    from_terminal: bool


class Inbox(ABC):
    """Where signals to the job arrive between `__enter__` and `__exit__`."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def wait(self, timeout_s: float) -> Received | None:
        """The next signal; None when a child may have ended, or after the timeout."""

    @abstractmethod
    def in_child(self) -> None:
        """Undoes, between fork and exec, what a child has inherited."""


def _wanted() -> set[signal.Signals]:
    """The signals to take: not those that whoever started us has told us to ignore, as nohup does."""
    return {number for number in (*ENDING, *PASSED_ON) if signal.getsignal(number) is not signal.SIG_IGN}


@final
class BlockedSignals(Inbox):
    """Linux: signals are blocked and fetched, so none is missed and each says whether the terminal sent it."""

    def __init__(self) -> None:
        self._taken: set[signal.Signals] = set()
        self._mask: set[int] = set()

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Inherited: the system would throw the exit codes of our children away.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._taken = _wanted() | {signal.SIGCHLD}
        self._mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def wait(self, timeout_s: float) -> Received | None:
        """The next signal; a child that ends wakes it."""
        if sys.platform == "darwin":
            raise NotImplementedError("macOS has no sigtimedwait")
        info = signal.sigtimedwait(self._taken, max(timeout_s, 0))
        # CPython gives what was in memory where the whole process was stopped until after the timeout
        if info is None or info.si_signo == signal.SIGCHLD or info.si_signo not in self._taken:
            return None
        return Received(signal.Signals(info.si_signo), from_terminal=info.si_code == _SI_KERNEL)

    def in_child(self) -> None:
        """Gives the child the mask that the launcher was started with."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


@final
class HandledSignals(Inbox):
    """Systems without sigtimedwait: handlers note each signal, and the launcher looks every 20 ms."""

    def __init__(self) -> None:
        self._notes: deque[signal.Signals] = deque()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _wanted()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if callable(handler) else signal.SIG_DFL)

    def wait(self, timeout_s: float) -> Received | None:
        """The next signal noted."""
        if not self._notes:
            time.sleep(max(min(timeout_s, _POLL_S), 0))
        if not self._notes:
            return None
        number = self._notes.popleft()
        return Received(number, from_terminal=number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty())

    def in_child(self) -> None:
        """Nothing: exec sets handled signals back to their defaults."""

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._notes.append(signal.Signals(number))


@final
class PythonSignals(Inbox):
    """A notebook: Python's own handlers stay, and KeyboardInterrupt comes out of `wait`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout_s: float) -> Received | None:
        """None, after 20 ms or the timeout.

        Raises: KeyboardInterrupt when the user interrupts.
        """
        time.sleep(max(min(timeout_s, _POLL_S), 0))
        return None

    def in_child(self) -> None:
        """Nothing was changed."""


def has_terminal() -> bool:
    """Whether a terminal controls this process: it may send signals to its group, and let only that group read."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def command_line_inbox() -> Inbox:
    """The inbox for a launcher that owns its process."""
    return BlockedSignals() if sys.platform == "linux" else HandledSignals()
