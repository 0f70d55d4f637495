"""A thread of each process that looks after its waits, says which rank waits where for whom, and ends the job."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import final

from accel_state.board import Board
from accel_state.exits import STALLED
from accel_state.hang_detector import HangDetector, Wait
from accel_state.journal import Journal, is_ours
from accel_state.pulse import END
from accel_state.stall import Status

#: seconds between two looks at the own journal
POLL_S = 0.25
#: seconds that the end of a process waits for the watch
CLOSING_S = 1.6


@final
class Watch:
    """Looks into waits of this process that last, together with the watches of the others."""

    def __init__(
        self,
        board: Board,
        journal: Journal,
        size: int,
        *,
        limit_s: float,
        leave: Callable[[int], object] = os._exit,
        main: int | None = None,
        in_wait: Callable[[FrameType], bool] | None = None,
    ) -> None:
        self._board, self._journal = board, journal
        self._leave = leave
        # no method of this object, which would keep the board, and so a store's file, until the next garbage collection
        main = main or threading.main_thread().ident
        status = OwnStatus(board.rank, journal, main, in_wait or is_in_wait)
        self._detector = HangDetector(board, size, status, limit_s=limit_s)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accel-watch", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def close(self) -> None:
        """Tells the others that this process has come to its end, and stops watching."""
        if self._closing.is_set():
            return
        self._closing.set()
        with suppress(KeyboardInterrupt):  # it came when the process had ended anyway
            self._thread.join(timeout=CLOSING_S)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and the process that serves it: exchanges end by themselves
            self._watch()
        if self._detector.judged and not self._closing.is_set():
            self._leave(STALLED)

    def _watch(self) -> None:
        while not self._closing.wait(POLL_S):
            self._turn()
            if self._detector.over:
                return
        last, me = self._journal.newest(), self._board.rank
        number, call = (0, None) if last is None else (last.number, str(last))
        self._board.post(f"status/{me}", Status(me, number, call=call, ended=True).as_dict())
        self._board.pulse(END)

    def _turn(self) -> None:
        entry, now, wait = self._journal.newest(), time.monotonic(), None
        if entry is not None and entry.ended is None:
            wait = Wait(entry.number, now - entry.began, entry.patient)
        verdict = self._detector.turn(now, wait)
        if verdict is not None:
            with suppress(OSError):  # nobody may listen any more
                os.write(2, f"accel: {verdict.text}\n".encode(errors="replace"))


@final
class OwnStatus:
    """What this process is doing, asked from another thread than the main one."""

    def __init__(self, rank: int, journal: Journal, main: int | None, in_wait: Callable[[FrameType], bool]) -> None:
        self._rank, self._journal = rank, journal
        self._main, self._in_wait = main, in_wait

    def __call__(self) -> Status:
        """The newest exchange, whether the main thread waits in it, and the line that it is at."""
        entry = self._journal.newest()
        frame = sys._current_frames().get(self._main or 0)
        doing = users_line(frame) if frame is not None else "its end"
        if entry is None:
            return Status(self._rank, doing=doing)
        waiting = entry.ended is None and frame is not None and self._in_wait(frame)
        waits = time.monotonic() - entry.began if waiting else None
        call, moves = str(entry), bool(entry.data)
        return Status(self._rank, entry.number, entry.what, call, waits, entry.patient, doing, moves=moves)


def is_in_wait(frame: FrameType) -> bool:
    """Whether a stack that has begun an exchange still waits in it, and does not run a signal's handler meanwhile."""
    here: FrameType | None = frame
    while here is not None and f"torch{os.sep}distributed" in here.f_code.co_filename:
        here = here.f_back
    return here is not None and is_ours(here)


def users_line(frame: FrameType) -> str:
    """The innermost line of the user's own on a stack, with its text."""
    own, found = _library_folders(), frame
    here: FrameType | None = frame
    while here is not None:
        name = here.f_code.co_filename
        if not name.startswith(own) and not name.startswith("<") and not is_ours(here):
            found = here
            break
        here = here.f_back
    name, number = found.f_code.co_filename, found.f_lineno
    text = linecache.getline(name, number).strip()
    return f"{name}:{number} in {found.f_code.co_name}{f': {text}' if text else ''}"


def _library_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
