"""Ranks that wait for another's work, for as long as it lives and not for a collective."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

from accel_state.errors import CollectiveMismatch, PeerFailed
from accel_state.status_store import StatusStore
from accel_state.transports.peer_errors import CLOSES_S

#: seconds between two requests, at first and at most; in between, each is an eighth of the wait so far
FIRST_S, MOST_S = 0.001, 5.0
#: seconds between two looks at whether a process on this machine lives, which are no requests
CHECK_S = 0.25
#: seconds without a sign of life of the first rank, when it is on another machine
SILENT_S = 60.0


@final
class OrderedSection:
    """The turns of a job: the ranks that call these methods must do so in like order."""

    def __init__(self, store: StatusStore) -> None:
        self._store = store
        self._turn = 0
        self._has_listeners = False

    @contextmanager
    def lead(self, site: str) -> Iterator[None]:
        """Lets the others go on when the block is left, and tells them why it failed, if it did."""
        self._turn += 1
        turn = self._turn
        try:
            yield
        except BaseException as error:
            self._end(turn, site, f"rank {self._store.rank}: {type(error).__name__}: {error}")
            raise
        self._end(turn, site, None)

    def _end(self, turn: int, site: str, failure: str | None) -> None:
        self._store.post(f"turn/{turn}/{self._store.rank}", [failure, site])
        if not self._has_listeners:
            self._has_listeners = True
            atexit.register(self.close)

    def close(self) -> None:
        """Returns when the ranks that wait for this rank's turn know its end: this process may serve the store."""
        atexit.unregister(self.close)
        until = time.monotonic() + MOST_S + CHECK_S
        with suppress(RuntimeError):
            while self._has_listeners and self._store.count(_listeners(self._store.rank)) > 0:
                if time.monotonic() > until:
                    break
                time.sleep(CHECK_S / 5)
        self._has_listeners = False

    def wait(self, first: int, site: str) -> None:
        """Returns once the turn of rank `first` has ended.

        Raises: PeerFailed when it failed, or that process is gone; CollectiveMismatch if it took its turn elsewhere.
        """
        self._turn += 1
        listeners = _listeners(first)
        try:
            self._store.count(listeners, 1)
            failure, where = self._end_of(first)
            self._store.count(listeners, -1)
        except PeerFailed:
            raise
        except RuntimeError as error:
            raise PeerFailed(f"rank {first}, or the process that serves the store, is gone ({error})") from None
        if where.rpartition("/")[2] != site.rpartition("/")[2]:
            raise CollectiveMismatch(
                "ranks take their turns at different lines:"
                f"\n  rank {first}: main_process_first at {where}"
                f"\n  rank {self._store.rank}: main_process_first at {site}\nenter it on every rank"
            )
        if failure is not None:
            raise PeerFailed(f"the process that had to go first failed: {failure}")

    def meet(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """The notes of these ranks under that name; takes no turn, so that any thread may call this.

        Raises: PeerFailed if a process is gone, or a machine silent after the script has ended here.
        """
        names, began, until = [f"{name}/{rank}" for rank in ranks], time.monotonic(), math.inf
        try:
            self._store.post(f"{name}/{self._store.rank}", note)
            while True:
                lives = self._store.all_alive(ranks)
                notes = self._store.read_all(names)
                missing = [str(rank) for rank, left in zip(ranks, notes, strict=True) if left is None]
                if not missing:
                    return notes
                now = time.monotonic()
                if not threading.main_thread().is_alive():
                    until = min(until, now + SILENT_S)
                if now > until or False in lives:
                    raise PeerFailed(f"rank {', '.join(missing)} is gone, or its machine does not answer")
                time.sleep(min(max((now - began) / 8, FIRST_S), MOST_S))
        except PeerFailed:
            raise
        except RuntimeError as error:
            raise PeerFailed(f"the process that serves the store is gone ({error})") from None

    def _end_of(self, first: int) -> tuple[str | None, str]:
        name, began = f"turn/{self._turn}/{first}", time.monotonic()
        beat, heard = 0, began
        while True:
            lives = self._store.alive(first)
            if lives is False:
                self._store.is_gone(CLOSES_S)
            note = self._store.read(name)
            if note is not None:
                return note[0], note[1]
            newest = self._store.heartbeat().beats if lives is None and first == 0 else 0
            now = time.monotonic()
            if newest != beat:
                beat, heard = newest, now
            if lives is False or (beat and now - heard > SILENT_S):
                raise PeerFailed(f"rank {first}, which had to go first, is gone")
            until = now + min(max((now - began) / 8, FIRST_S), MOST_S)
            while (left := until - time.monotonic()) > 0 and (lives is None or self._store.alive(first)):
                time.sleep(min(left, CHECK_S))


def _listeners(first: int) -> str:
    return f"listeners/{first}"
