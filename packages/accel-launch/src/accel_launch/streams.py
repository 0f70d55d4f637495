"""What processes print: shown, kept in files, and its end remembered for the last words on a job."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import IO, Self, final

from accel_launch.screen import Screen

#: bytes of the errors of each process that are remembered
TAIL = 1 << 16
#: seconds that the start of a line waits for its end before it is shown
PATIENCE_S = 0.1
#: seconds after the last process that its output may still come, from processes of its own that it has left; and bytes
LAST_S, LAST = 1.0, 1 << 24
#: seconds for what was printed to be read, when somebody has ended the job
UNREAD_S = 2.0
_CHUNK = 1 << 16

OUT, ERR = 1, 2


def open_standard_streams() -> None:
    """Opens those of input, output and errors that this process was started without, as nothing.

    Else what is opened next, such as the socket of the store, would take their numbers, and lose them in a child.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free


def shown_of(tee: str) -> frozenset[int]:
    """The outputs that a value of option `tee` names."""
    return frozenset(number for number in (OUT, ERR) if int(tee) & number)


@dataclass
class _Stream:
    """One output of one process: where it comes from and where it goes."""

    rank: int
    source: int
    shown: int | None
    file: IO[bytes] | None
    tail: bytearray | None
    held: bytearray = field(default_factory=bytearray)
    since: float = 0.0


@final
class Streams:
    """Reads what the processes of a job print, in a thread, while it is open.

    Errors are always read, so that the end of those of each process is known. With a folder everything is, and kept
    there in `rank-N.out` and `rank-N.err`; `shown` names the outputs that are passed on, whole lines at a time. Where
    those of this process are a terminal, the processes have one too.
    """

    def __init__(self, folder: Path | None = None, shown: frozenset[int] = frozenset({OUT, ERR})) -> None:
        self.folder = folder
        self._shown = shown
        self._streams: list[_Stream] = []
        self._ours: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._screen = Screen()
        #: the rank whose errors were shown last
        self.newest: int | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self._close_ours()
        self._over.set()
        self._screen.hurry(inf)
        if self._thread is not None:
            self._thread.join()
        self._screen.finish(LAST_S)
        for stream in self._streams:
            os.close(stream.source)
            if stream.file is not None:
                stream.file.close()
        self._selector.close()

    @property
    def shows_errors(self) -> bool:
        """Whether errors are passed on."""
        return ERR in self._shown

    def of(self, rank: int) -> tuple[int | None, int]:
        """Where a process of that rank writes: its standard output, None for that of this process, and its errors."""
        out = self._open(rank, OUT) if self.folder is not None or OUT not in self._shown else None
        return out, self._open(rank, ERR)

    def started(self) -> None:
        """Begins to read; all processes have been started."""
        self._close_ours()
        self._thread = threading.Thread(target=self._read, name="accel-output", daemon=True)
        self._screen.start()
        self._thread.start()

    def hurry(self) -> None:
        """Reads what comes although it cannot be shown yet: a process has failed, and its last words are wanted."""
        self._screen.hurry()

    def finish(self, told: Callable[[], bool] = lambda: False) -> None:
        """Returns when all is shown that came; where somebody has told this process to end, not later than he waits.

        No process writes any more.
        """
        self._over.set()
        self._screen.hurry()
        until = inf
        for ended in (self._has_read, self._screen.finish):
            while not ended(PATIENCE_S / 2):
                if until == inf and told():
                    until = time.monotonic() + UNREAD_S
                    self._screen.hurry(inf)
                if time.monotonic() >= until:
                    break

    def tails(self) -> Mapping[int, str]:
        """The end of the errors of each process, by rank."""
        return {one.rank: one.tail.decode(errors="replace") for one in self._streams if one.tail is not None}

    def _has_read(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _open(self, rank: int, number: int) -> int:
        source, ours = _terminal(number) if number in self._shown and os.isatty(number) else os.pipe()
        os.set_blocking(source, False)
        file = None
        if self.folder is not None:
            name = f"rank-{rank}.{'out' if number == OUT else 'err'}"
            file = (self.folder / name).open("ab", buffering=0)
        shown = number if number in self._shown else None
        tail = bytearray() if number == ERR else None
        stream = _Stream(rank, source, shown, file, tail)
        self._streams.append(stream)
        self._ours.append(ours)
        self._selector.register(source, selectors.EVENT_READ, stream)
        return ours

    def _close_ours(self) -> None:
        for one in self._ours:
            os.close(one)
        self._ours.clear()

    def _read(self) -> None:
        open_ones, until, late = len(self._streams), inf, 0
        while open_ones and late < LAST:
            if self._over.is_set() and until == inf:
                until = time.monotonic() + LAST_S
                self.hurry()
            over = time.monotonic() >= until
            ready = self._selector.select(0 if over else PATIENCE_S / 2)
            if over and not ready:
                break
            for key, _ in ready:
                chunk = _next(key.fd)
                if chunk:
                    late += len(chunk) if over else 0
                    self._take(key.data, chunk)
                elif chunk is not None:
                    self._selector.unregister(key.fd)
                    open_ones -= 1
            for stream in self._streams:
                if stream.held and time.monotonic() - stream.since > PATIENCE_S:
                    self._show(stream, len(stream.held))
        for stream in self._streams:
            self._show(stream, len(stream.held))

    def _take(self, stream: _Stream, chunk: bytes) -> None:
        if stream.file is not None:
            try:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[stream.file.write(rest) :]  # a full disk takes a part first
            except OSError as error:
                self._screen.show(ERR, f"accel: {stream.file.name} is not written any more: {error}\n".encode())
                stream.file.close()
                stream.file = None
        if stream.tail is not None:
            self.newest = stream.rank if stream.shown is not None else self.newest
            stream.tail += chunk
            del stream.tail[:-TAIL]
        if stream.shown is not None:
            if not stream.held:
                stream.since = time.monotonic()
            stream.held += chunk
            self._show(stream, max(stream.held.rfind(b"\n"), stream.held.rfind(b"\r")) + 1)

    def _show(self, stream: _Stream, count: int) -> None:
        if count and stream.shown is not None:
            self._screen.show(stream.shown, bytes(stream.held[:count]))
            del stream.held[:count]
            stream.since = time.monotonic()


def _next(source: int) -> bytes | None:
    """What came; nothing at the end, None where there is nothing yet."""
    try:
        return os.read(source, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # a terminal that everybody has left
        return b""


def _terminal(like: int) -> tuple[int, int]:
    """The two ends of a terminal that changes nothing of what is written, as wide as another one."""
    import pty
    import termios

    source, ours = pty.openpty()
    modes = termios.tcgetattr(ours)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(ours, termios.TCSANOW, modes)
    with suppress(termios.error, AttributeError):
        termios.tcsetwinsize(ours, termios.tcgetwinsize(like))
    return source, ours
