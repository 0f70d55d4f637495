"""A thread of each process that notices when a wait is in vain, says who waits where for whom, and ends the job."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn, final

from accel_state.board import BEAT_S, Board
from accel_state.exits import STALLED
from accel_state.journal import Journal, is_ours
from accel_state.stall import Status, Verdict, judge

#: seconds between two looks at the board, and after which a wait is looked into
POLL_S, LOOK_S = 0.25, 3.0
#: seconds after which a wait is told, the first time
NOTICE_S = 60.0
#: seconds that others have to say what they are doing
ANSWER_S = 0.8


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
        leave: Callable[[int], NoReturn] = os._exit,
        main: int | None = None,
        in_wait: Callable[[FrameType], bool] | None = None,
    ) -> None:
        self._board, self._journal, self._size = board, journal, size
        self._limit_s = limit_s
        self._leave = leave
        self._main = main or threading.main_thread().ident
        self._in_wait = in_wait or is_in_wait
        self._answered = 0
        self._looked = (0.0, 0)
        self._before: Sequence[Status | None] | None = None
        self._notice_s = NOTICE_S
        self._beat_at = 0.0
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
            self._thread.join(timeout=2 * ANSWER_S)

    def _run(self) -> None:
        try:
            beats = 0
            while not self._closing.wait(POLL_S):
                if time.monotonic() >= self._beat_at:
                    self._beat_at, beats = time.monotonic() + BEAT_S, beats + 1
                    self._board.post(f"beat/{self._board.rank}", beats)
                self._turn()
            last = self._journal.newest()
            self._board.end(0 if last is None else last.number, None if last is None else str(last))
        except RuntimeError:
            return  # the store is gone, and with it the process that serves it: exchanges end by themselves

    def _turn(self) -> None:
        if self._board.read("verdict") is not None:
            self._leave(STALLED)
        self._answer()
        entry, now = self._journal.newest(), time.monotonic()
        if entry is None or entry.ended is not None or now - entry.began < min(LOOK_S, self._limit_s / 2):
            return
        since, number = self._looked
        if number != entry.number:
            self._before, self._notice_s = None, NOTICE_S
        limit = entry.began + self._limit_s
        if number != entry.number or now - since >= min(LOOK_S, self._limit_s / 4) or since < limit <= now:
            self._looked = now, entry.number
            self._look(entry.number)

    def _answer(self, *, ask: bool = False) -> int:
        """Says what this rank is doing if somebody asks, or asks all: the number of the question."""
        asked = self._board.count("asked", int(ask))
        if asked > self._answered:
            self._answered = asked
            self._board.post(f"status/{self._board.rank}", self._status().as_dict())
        return asked

    def _look(self, number: int) -> None:
        statuses, verdict = self._judged()
        if verdict is not None and verdict.fatal and not verdict.sure:
            # what was said of one may have been over when another said its own
            numbers = {one.rank: one.number for one in statuses if one is not None and one.waits is not None}
            statuses, verdict = self._judged()
            again = {one.rank: one.number for one in statuses if one is not None and one.waits is not None}
            if again != numbers:
                verdict = None
        self._before = statuses
        newest = self._journal.newest()
        if verdict is not None and newest is not None and newest.number == number and newest.ended is None:
            self._tell(verdict)

    def _judged(self) -> tuple[list[Status | None], Verdict | None]:
        statuses = self._statuses(self._answer(ask=True))
        statuses[self._board.rank] = self._status()
        waiting = [one.rank for one in statuses if one is not None and one.waits is not None]
        if not waiting or waiting[0] != self._board.rank:
            return statuses, None  # it is for the first that waits to say so
        alive = [self._board.alive(rank) for rank in range(self._size)]
        return statuses, judge(statuses, self._before, alive, limit=self._limit_s, notice=self._notice_s)

    def _tell(self, verdict: Verdict) -> None:
        if verdict.fatal:
            self._board.post("verdict", verdict.text)
        with suppress(OSError):  # nobody may listen any more
            os.write(2, f"accel: {verdict.text}\n".encode(errors="replace"))
        if not verdict.fatal:
            self._notice_s *= 2
            return
        time.sleep(2 * POLL_S)  # the others leave first: this process may serve the store
        self._leave(STALLED)

    def _statuses(self, asked: int) -> list[Status | None]:
        found: list[Status | None] = [None] * self._size
        until = time.monotonic() + ANSWER_S
        while True:
            self._answer()  # others may ask at the same time
            for rank in range(self._size):
                if found[rank] is None:
                    found[rank] = self._told(rank, asked)
            missing = [rank for rank, one in enumerate(found) if one is None and self._board.alive(rank) is not False]
            if not missing or time.monotonic() > until:
                return found
            time.sleep(POLL_S / 5)

    def _told(self, rank: int, asked: int) -> Status | None:
        note = self._board.read(f"status/{rank}")
        if note is not None and note["asked"] >= asked:
            return Status(**note)
        last = self._board.ended(rank)
        return None if last is None else Status(rank, last[0], call=last[1], ended=True)

    def _status(self) -> Status:
        entry = self._journal.newest()
        frame = sys._current_frames().get(self._main or 0)
        doing = users_line(frame) if frame is not None else "its end"
        if entry is None:
            return Status(self._board.rank, asked=self._answered, doing=doing)
        waiting = entry.ended is None and frame is not None and self._in_wait(frame)
        waits = time.monotonic() - entry.began if waiting else None
        me, asked = self._board.rank, self._answered
        return Status(
            me, entry.number, entry.what, str(entry), waits, entry.patient, doing, asked=asked, moves=bool(entry.data)
        )


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
