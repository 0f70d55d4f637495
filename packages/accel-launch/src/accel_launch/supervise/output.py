"""What processes print, if it is to be kept: in a file for each rank, and shown as well."""

from __future__ import annotations

import os
import selectors
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self, final

#: seconds that the start of a line waits for its end before it is shown
PATIENCE_S = 0.1
#: seconds after the last process that its output may still come, from processes of its own that it has left
LAST_S = 1.0
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


def say(words: str) -> None:
    """Prints a line on the standard error of the launcher."""
    # not by sys.stderr: if nobody listens any more, that would end this process with a code of its own
    write_all(ERR, f"{words}\n".encode(errors="backslashreplace"))


def write_all(to: int, content: bytes) -> None:
    """Writes all of it, however long that takes, unless nobody listens there any more."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(to, rest) :]
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return


@dataclass
class _Stream:
    """One output of one process: where it comes from and where it goes."""

    shown: int | None
    file: IO[bytes] | None
    held: bytearray = field(default_factory=bytearray)


@final
class Output:
    """Keeps what processes print in `rank-N.out` and `rank-N.err` of a folder; `shown` names what is passed on.

    It is passed on whole lines at a time. Whoever reads slowly holds up those who print, as behind `tee` in a shell.
    """

    def __init__(self, folder: Path, shown: frozenset[int]) -> None:
        self.folder, self.shown = folder, shown
        self._theirs: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="accel-output", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close_theirs()
        self.finish(LAST_S)

    def of(self, rank: int) -> tuple[int, int]:
        """Where a process of that rank writes its output and its errors."""
        out, err = (self._open(rank, number) for number in (OUT, ERR))
        return out, err

    def started(self) -> None:
        """Begins to read; all processes have been started."""
        self._close_theirs()
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Whether all that came was kept and shown, at the latest after so long; no process writes any more."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _open(self, rank: int, number: int) -> int:
        source, theirs = os.pipe()
        file = (self.folder / f"rank-{rank}.{'out' if number == OUT else 'err'}").open("ab", buffering=0)
        self._theirs.append(theirs)
        self._selector.register(source, selectors.EVENT_READ, _Stream(number if number in self.shown else None, file))
        return theirs

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def _read(self) -> None:
        until = None
        while self._selector.get_map():
            if until is None and self._over.is_set():
                until = time.monotonic() + LAST_S
            ready = self._selector.select(PATIENCE_S if until is None else 0)
            if not ready and until is not None and time.monotonic() >= until:
                break
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                self._take(key.data, chunk)
                if not chunk:
                    self._close(key)
            if not ready:
                for key in self._selector.get_map().values():
                    _show(key.data, len(key.data.held))
                time.sleep(0 if until is None else PATIENCE_S / 10)
        for key in [*self._selector.get_map().values()]:
            self._close(key)
        self._selector.close()

    def _take(self, stream: _Stream, chunk: bytes) -> None:
        if stream.file is not None:
            try:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[stream.file.write(rest) :]  # a full disk takes a part first
            except OSError as error:
                say(f"accel: {stream.file.name} is not written any more: {error}")
                stream.file.close()
                stream.file = None
        if stream.shown is not None:
            stream.held += chunk
            _show(stream, max(stream.held.rfind(b"\n"), stream.held.rfind(b"\r")) + 1)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fd)
        os.close(key.fd)
        _show(key.data, len(key.data.held))
        if key.data.file is not None:
            key.data.file.close()


def _show(stream: _Stream, count: int) -> None:
    if stream.shown is not None:
        write_all(stream.shown, bytes(stream.held[:count]))
    del stream.held[:count]
