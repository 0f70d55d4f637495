"""Watch the waits of a process by a thread, say which rank waits in which call for whom, and end the job."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from types import FrameType
from typing import final

from accel_comm.flight_recorder import FlightRecorder, is_ours
from accel_comm.hang_detector import HangDetector, Wait
from accel_comm.hang_diagnosis import RankStatus
from accel_comm.status_store import StatusStore

#: seconds between two looks at the own flight recorder
POLL_S = 0.25
#: seconds that the end of a process waits for the watchdog
CLOSING_S = 1.6
#: the modules in which accel waits
_WAITS = ("torch.distributed", "concurrent.futures", "threading")


def is_in_wait(frame: FrameType) -> bool:
    """Return whether a stack that has begun an exchange still waits in it, and runs no handler of a signal."""
    inner: FrameType | None = frame
    while inner is not None and inner.f_globals.get("__name__", "").startswith(_WAITS):
        inner = inner.f_back
    return inner is not None and is_ours(inner)


@final
class Watchdog:
    """A thread that looks into waits of this process that last, together with the watchdogs of the others.

    Args:
        store: Notes of the ranks, over a connection that no request blocks.
        recorder: Flight recorder of this process.
        size: Number of ranks.
        limit_s: Seconds after which a wait is in vain.
        leave: Function that ends this process after a fatal diagnosis.
        is_over: Function that returns whether the run of this process has ended, with which the watch ends.
    """

    def __init__(
        self,
        store: StatusStore,
        recorder: FlightRecorder,
        size: int,
        *,
        limit_s: float,
        leave: Callable[[], object],
        is_over: Callable[[], bool] = bool,
    ) -> None:
        self._store, self._recorder = store, recorder
        self._leave, self._is_over = leave, is_over
        # no method of this object, which would keep a store's file until the next garbage collection
        status = functools.partial(own_status, store.rank, recorder)
        self._detector = HangDetector(store, size, status, limit_s=limit_s)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accel-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Tell the others that this process has come to its end, and stop watching."""
        if self._closing.is_set():
            return
        self._closing.set()
        with suppress(KeyboardInterrupt):  # it came when the process had ended anyway
            self._thread.join(timeout=CLOSING_S)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and the process that serves it: exchanges end by themselves
            self._watch()
        if self._detector.diagnosed and not self._closing.is_set():
            self._leave()

    def _watch(self) -> None:
        while not (self._closing.wait(POLL_S) or self._is_over()):
            if not self._store.is_stopped():  # a rank 0 that is stopped for long goes on well
                self._turn()
            if self._detector.over:
                return
        last = replace(own_status(self._store.rank, self._recorder), waits=None, ended=True)
        self._store.post(f"status/{last.rank}", asdict(last))
        self._store.end(last.call)

    def _turn(self) -> None:
        record, now, wait = self._recorder.newest(), time.monotonic(), None
        if record is not None and record.ended is None:
            wait = Wait(record.number, now - record.began, record.patient)
        diagnosis = self._detector.turn(now, wait)
        if diagnosis is not None:
            with suppress(OSError):  # nobody may listen any more
                os.write(2, f"accel: {diagnosis.text}\n".encode(errors="replace"))


def own_status(rank: int, recorder: FlightRecorder) -> RankStatus:
    """Return the newest exchange of this process, whether its thread waits in it, and the line that the thread is at.

    Args:
        rank: Rank of this process.
        recorder: Flight recorder of this process.
    """
    record, frame = recorder.newest(), sys._current_frames().get(recorder.thread or 0)
    doing = users_line(frame) if frame is not None else "its end"
    if record is None:
        return RankStatus(rank, doing=doing)
    waiting = record.ended is None and frame is not None and is_in_wait(frame)
    waits = time.monotonic() - record.began if waiting else None
    return RankStatus(
        rank,
        record.number,
        record.what,
        str(record),
        waits,
        record.patient,
        doing,
        moves=bool(record.data),
        skipped=dict(recorder.skipped),
    )


def users_line(frame: FrameType) -> str:
    """Return the innermost line of the script on a stack, with its text."""
    own, users = _library_folders(), frame
    inner: FrameType | None = frame
    while inner is not None:
        name = inner.f_code.co_filename
        if not name.startswith(own) and not name.startswith("<") and not is_ours(inner):
            users = inner
            break
        inner = inner.f_back
    name, number = users.f_code.co_filename, users.f_lineno
    text = linecache.getline(name, number).strip()
    return f"{name}:{number} in {users.f_code.co_name}{f': {text}' if text else ''}"


def _library_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
