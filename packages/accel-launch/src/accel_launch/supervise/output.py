"""Keep the output of processes in a file for each rank, and show it as well."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import IO, Self, final

#: seconds that the start of a line waits for its end before it is shown
LINE_S = 0.1
#: seconds after the last process that its output may still come, from processes of its own that it has left
LAST_S = 1.0
#: as many bytes as a pipe holds
_CHUNK = 1 << 16

OUT, ERR = 1, 2


def open_standard_streams() -> None:
    """Replace each of input, output and errors that is not open by the null device.

    Otherwise the next open file, such as the socket of the store, would take its number, and a child would lose it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free


def say(words: str) -> None:
    """Print a line on the standard error of the launcher."""
    # not by sys.stderr: if nobody listens any more, that would end this process with a code of its own
    write_all(ERR, f"{words}\n".encode(errors="backslashreplace"))


def write_all(to: int, content: bytes) -> OSError | None:
    """Send all of the content to a descriptor, however long that takes. Return the error if it is refused."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(to, rest) :]  # a full disk takes a part first
        except BlockingIOError:
            time.sleep(0.01)
        except OSError as error:
            return error
    return None


@final
class Output:
    """A keeper of the output of processes, in `rank-N.out` and `rank-N.err` of a folder.

    Output is shown whole lines at a time. A slow reader holds up the processes that print, as behind `tee` in a shell.

    Args:
        folder: Folder of the files.
        shown: Streams to show as well: OUT, ERR or both.
    """

    def __init__(self, folder: Path, shown: Collection[int]) -> None:
        self.folder, self.shown = folder, shown
        self._write_ends: list[int] = []
        self._threads: list[threading.Thread] = []
        self._showing = threading.Lock()
        #: when what pipes hold is all that is kept
        self._until_s = inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.started()
        self.finish(LAST_S)

    def of(self, rank: int) -> tuple[int, int]:
        """Return the descriptors to which a process of a rank writes its output and its errors."""
        return self._open(f"rank-{rank}.out", OUT), self._open(f"rank-{rank}.err", ERR)

    def started(self) -> None:
        """Start to read. All processes have been started, which is not safe once there are threads."""
        while self._write_ends:
            os.close(self._write_ends.pop())
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Return True if all output is kept and shown, after at most so many seconds. No process writes any more."""
        self._until_s = min(self._until_s, time.monotonic() + LAST_S)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _open(self, name: str, number: int) -> int:
        file = (self.folder / name).open("ab", buffering=0)
        source, write_end = os.pipe()
        self._write_ends.append(write_end)
        self._threads.append(
            threading.Thread(
                target=self._copy, args=(source, file, number if number in self.shown else None), daemon=True
            )
        )
        return write_end

    def _copy(self, source: int, file: IO[bytes], to: int | None) -> None:
        """Copy what comes from a pipe, until nobody writes to it or `LAST_S` after the last process."""
        held, ready, more = bytearray(), select.poll(), True
        ready.register(source, select.POLLIN)
        while more:
            late = (
                time.monotonic() >= self._until_s
            )  # what the pipe holds is all that is kept of a program that goes on
            if not ready.poll(0 if late else LINE_S * 1000):
                more = not late
                self._show(to, held, len(held))
                continue
            chunk = os.read(source, _CHUNK)
            more = bool(chunk) and not late
            error = None if file.closed else write_all(file.fileno(), chunk)
            if error is not None:
                file.close()
                say(f"accel: {file.name} is not written any more: {error}")
            held += chunk if to is not None else b""
            self._show(to, held, max(held.rfind(b"\n"), held.rfind(b"\r")) + 1)
        self._show(to, held, len(held))
        os.close(source)
        file.close()

    def _show(self, to: int | None, held: bytearray, count: int) -> None:
        if to is not None and count:
            with self._showing:
                write_all(to, bytes(held[:count]))
            del held[:count]
