"""Ranks that wait for another's work, for as long as it lives and not for a collective."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import final

from accel_state.errors import CollectiveMismatch, PeerFailed
from accel_state.status_store import StatusStore

#: seconds between two requests, at first and at most; in between, each is an eighth of the wait so far
FIRST_S, MOST_S = 0.001, 5.0
#: seconds between two looks at whether a process on this machine lives, which are no requests
CHECK_S = 0.25
#: seconds that a process which has ended may need to close its connections, the store's perhaps
CLOSES_S = 0.5
#: seconds without a sign of life of the first rank, when it is on another machine
SILENT_S = 60.0


@final
class OrderedSection:
    """The turns of a job: the ranks that call these methods must do so in like order."""

    def __init__(self, store: StatusStore) -> None:
        self._store = store
        self._turn = 0
        self._has_listeners = False

    def whereabouts(self, ranks: Sequence[int]) -> str:
        """A line for each of these ranks, other than this one, that is gone, or has come to its end."""
        others, rows = [rank for rank in ranks if rank != self._store.rank], []
        try:
            ended = self._store.ended(others)
            lives = dict(zip(others, self._store.all_alive(others), strict=True))
        except RuntimeError:
            return "\n  the process that serves the store is gone"
        for rank in others:
            if rank in ended:
                last = ended[rank]
                did = f"its last was {last}" if last is not None else "it has called none"
                rows.append(f"\n  rank {rank} has come to its end; {did}")
            elif lives[rank] is False:
                rows.append(f"\n  rank {rank} is gone")
        return "".join(rows)

    def is_diagnosed(self) -> bool:
        """Whether the job is being ended, with a report that says why."""
        try:
            return not self._store.is_gone(CLOSES_S) and self._store.heartbeat().diagnosed
        except RuntimeError:
            return False

    def begin(self) -> int:
        """The number of the turn that this rank begins."""
        self._turn += 1
        return self._turn

    def end(self, turn: int, site: str, failure: str | None) -> None:
        """Lets the others go on."""
        self._store.post(f"turn/{turn}/{self._store.rank}", [failure, site])
        if not self._has_listeners:
            self._has_listeners = True
            atexit.register(self.close)

    def close(self) -> None:
        """Returns when those that wait for this rank's turn know that it is over: this process may serve the store."""
        atexit.unregister(self.close)
        until = time.monotonic() + MOST_S + CHECK_S
        with suppress(RuntimeError):
            while self._has_listeners and self._store.count(self._listeners(self._store.rank)) > 0:
                if time.monotonic() > until:
                    break
                time.sleep(CHECK_S / 5)
        self._has_listeners = False

    def _listeners(self, first: int) -> str:
        return f"listeners/{first}"

    def wait(self, first: int, site: str) -> str | None:
        """Why the turn of rank `first` failed, or None, once it has ended.

        Raises: PeerFailed when that process is gone; CollectiveMismatch where that rank took its turn elsewhere.
        """
        self._turn += 1
        try:
            self._store.count(self._listeners(first), 1)
            failure, where = self._end_of(first)
            self._store.count(self._listeners(first), -1)
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
        return failure

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
