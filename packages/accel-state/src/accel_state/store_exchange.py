"""Exchange notes between ranks through the store: for waits without a time limit, and beside collectives."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast, final

from accel_comm.errors import AccelError, CollectiveMismatch, PeerFailed
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.status_store import StatusStore
from accel_comm.transports.peer_errors import CLOSES_S

#: seconds between two requests, at first and at most; in between, each is an eighth of the wait so far
FIRST_S, MOST_S = 0.001, 5.0
#: seconds between two looks at whether a process on this machine lives, which are no requests
CHECK_S = 0.25
#: seconds without a sign of life of the first rank, when it is on another machine
SILENT_S = 60.0


@final
class StoreExchange:
    """An exchange of notes through the store. It is no collective: other threads may run collectives meanwhile.

    Args:
        store: Notes in the store of the group; None in a process that is alone.
        recorder: Flight recorder of this process; None in a process that is alone.
    """

    def __init__(self, store: StatusStore | None = None, recorder: FlightRecorder | None = None) -> None:
        self._alone = store is None
        # a process that is alone asks neither
        self._store, self._recorder = cast(StatusStore, store), cast(FlightRecorder, recorder)
        self._turn = 0
        self._has_listeners = False
        #: seconds that a stopped rank 0 has once the script has ended here: none after it was waited for in vain
        self._patience_s = SILENT_S

    @contextmanager
    def ordered_section(self, first: int) -> Iterator[None]:
        """Run the block on rank `first` before the others that enter it, who wait as long as that process lives.

        Raises:
            PeerFailed: That rank has failed in the block, or is gone.
            CollectiveMismatch: It is in a block at another line.

        Collective:
            Every rank of the job must enter, in the same order. Each may wait for another rank, as that of its machine.
        """
        if self._alone:
            yield
            return
        recorder = self._recorder
        if self._store.rank == first:
            site = recorder.begin("main_process_first", patient=True)
            recorder.end()
            with self.lead(site):
                yield
            return
        site = recorder.begin(f"main_process_first (after rank {first})", patient=True)
        try:
            self.wait(first, site)
        finally:
            recorder.end()
        yield

    @contextmanager
    def lead(self, site: str) -> Iterator[None]:
        """Let the others continue when the block is left, and tell them why it failed, if it did.

        Args:
            site: File and line of the call, to compare between ranks.
        """
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
        """Wait, for at most 5.25 s, until the ranks that wait for this rank have read its note.

        This process may serve the store.
        """
        atexit.unregister(self.close)
        until = time.monotonic() + MOST_S + CHECK_S
        with suppress(RuntimeError):
            while self._has_listeners and self._store.count(f"listeners/{self._store.rank}") > 0:
                if time.monotonic() > until:
                    break
                time.sleep(CHECK_S / 5)
        self._has_listeners = False

    def wait(self, first: int, site: str) -> None:
        """Wait until the turn of rank `first` has ended.

        Args:
            first: Rank to wait for.
            site: File and line of the call, to compare between ranks.

        Raises:
            PeerFailed: It has failed, or its process is gone.
            CollectiveMismatch: It took its turn at another line.
        """
        self._turn += 1
        listeners = f"listeners/{first}"
        with _without_store(f"rank {first}, or the process that serves the store,"):
            self._store.count(listeners, 1)
            failure, where = self._note_of(first, f"turn/{self._turn}/{first}")
            self._store.count(listeners, -1)
        if where.rpartition("/")[2] != site.rpartition("/")[2]:
            raise CollectiveMismatch(
                "ranks take their turns at different lines:"
                f"\n  rank {first}: main_process_first at {where}"
                f"\n  rank {self._store.rank}: main_process_first at {site}\nenter it on every rank"
            )
        if failure is not None:
            raise PeerFailed(f"the process that had to go first failed: {failure}")

    def exchange_notes(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """Leave a note for other ranks, and return the notes of all once they are there.

        Args:
            name: Name of the exchange, used once in a run.
            ranks: Ranks whose notes are read, which may be none.
            note: A value that JSON can encode, except None.

        Returns:
            The notes in the order of `ranks`. Notes of several processes are read from JSON: a tuple becomes a list.

        Raises:
            PeerFailed: The process of a rank or of the store is gone, or rank 0 on another machine was silent for 60 s.
                Once the script has ended here, any rank that leaves no note for 60 s counts as gone.
            ValueError: The note is None, which says that there is no note yet.

        Collective:
            Each of these ranks must call.
        """
        if note is None:
            raise ValueError(
                f"exchange_notes({name!r}): None looks like a note that is not there yet; pass another value"
            )
        if self._alone:
            return [note]
        with _without_store("the process that serves the store"):
            self._wait_for_store()
            self._store.post(f"{name}/{self._store.rank}", note)
            return [self._note_of(rank, f"{name}/{rank}") for rank in ranks]

    def agree(self, name: str, ranks: Sequence[int], yes: bool) -> bool:
        """Return whether all these ranks say yes, the same on each.

        Args:
            name: Name of the agreement, used once in a run.
            ranks: Ranks that take part, this rank included.
            yes: Answer of this rank.

        Raises:
            PeerFailed: As in `exchange_notes`, and no rank has heard that all say yes.

        Collective:
            Each of these ranks must call.
        """
        if self._alone:
            return yes
        gone: PeerFailed | None = None
        try:
            yes = all(self.exchange_notes(name, ranks, yes))
        except PeerFailed as error:
            if self._store.is_stopped():
                raise
            yes, gone = False, error
        with _without_store("the process that serves the store"):
            yes = bool(self._store.first(f"{name}/verdict", yes))  # a rank that waits no more may be too early
        if gone is not None and not yes:
            raise gone
        return yes

    def _wait_for_store(self) -> None:
        """Wait while rank 0 is stopped: a request would hold this thread, and with it the end of a script, for ever."""
        heard = time.monotonic()
        while self._store.is_stopped():
            if threading.main_thread().is_alive():
                heard = time.monotonic()
            elif time.monotonic() - heard >= self._patience_s:
                self._patience_s = 0.0
                raise PeerFailed("rank 0, for which others wait, is stopped")
            time.sleep(CHECK_S)

    def _note_of(self, rank: int, name: str) -> Any:
        began = heard = time.monotonic()
        seen = (0, False)
        while True:
            lives = self._store.alive(rank)
            if lives is False:
                self._store.is_gone(CLOSES_S)
            self._wait_for_store()
            note = self._store.read(name)
            if note is not None:
                return note
            beats = self._store.heartbeat().beats if lives is None and rank == 0 else 0
            now, sign = time.monotonic(), (beats, not threading.main_thread().is_alive())
            if sign != seen:
                seen, heard = sign, now
            if lives is False or (any(seen) and now - heard > SILENT_S):
                raise PeerFailed(f"rank {rank}, for which others wait, is gone")
            until = now + min(max((now - began) / 8, FIRST_S), MOST_S)
            while (left := until - time.monotonic()) > 0 and (lives is None or self._store.alive(rank)):
                time.sleep(min(left, CHECK_S))


@contextmanager
def _without_store(who: str) -> Iterator[None]:
    """Replace the error of a store that is gone."""
    try:
        yield
    except AccelError:
        raise
    except RuntimeError as error:
        raise PeerFailed(f"{who} is gone ({error})") from None
