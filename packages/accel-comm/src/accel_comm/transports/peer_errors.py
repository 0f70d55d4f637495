"""Describe the error of an exchange that another process has left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from accel_comm.errors import AccelError, PeerLost
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.hang_detector import ENDING_S
from accel_comm.hang_diagnosis import ADVICE
from accel_comm.status_store import StatusStore

#: seconds that a process which has ended may need to close its connections, the store's perhaps
CLOSES_S = 0.5
#: words of gloo's and of NCCL's for a connection that is no more
_WORDS = ("onnection", "Timed out", "timed out", "Broken pipe", "peer", "remote", "Watchdog caught")


@final
class PeerErrors:
    """The errors of a rank whose exchange does not end.

    Args:
        rank: Rank of this process.
        recorder: Flight recorder of this process.
        store: Notes of the ranks; None if there are none.
    """

    def __init__(self, rank: int, recorder: FlightRecorder, store: StatusStore | None) -> None:
        self._rank, self._recorder, self._store = rank, recorder, store

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Replace errors of the block that say in gloo's words that another process is gone.

        An error of NCCL is kept, for its last lines have the cause, and gets a note of who is gone.

        Raises:
            PeerLost: In place of gloo's RuntimeError.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            if isinstance(error, AccelError) or not any(word in text for word in _WORDS):
                raise
            if type(error).__name__ == "DistBackendError":
                error.add_note(str(self.error("above")))
                raise
            # of gloo's words only what has happened
            first = text.splitlines()[0]
            raise self.error(first.rpartition("] ")[2].partition(". This")[0] or first) from None

    def error(self, cause: str) -> PeerLost:
        """Return the error that names the ranks that are gone, as far as they are known."""
        me = f"rank {self._rank}"
        newest, gone = self._recorder.newest(), self._store and self._gone(self._store)
        return PeerLost(
            f"{me} waits in {newest}, and not all others are there any more:{gone}\n{ADVICE} A process that failed has"
            f" said why. ({cause})"
            if gone
            else f"{me} lost another process, or waited too long for it, in {newest}; what that one says, or its log,"
            f" has the cause ({cause})"
        )

    def _gone(self, store: StatusStore) -> str:
        """Return a line for each rank of this machine that is gone, and of any machine that has come to its end."""
        if store.is_stopped():
            return "\n  rank 0, which serves the store, is stopped"
        try:  # all ranks ask at once: what each asks does not grow with their number
            store.is_gone(CLOSES_S)  # if it soon is, the next line raises
            heartbeat = store.heartbeat()
            if heartbeat.diagnosed:
                time.sleep(ENDING_S)  # the watchdog ends this process too, and its report has more to say
            ended, gone = store.ended(), store.gone_here()
        except RuntimeError:
            return "\n  the process that serves the store is gone"
        found = dict.fromkeys(gone, "is gone")
        for rank, last in ended.items():
            found[rank] = f"has come to its end; {'it has called none' if last is None else f'its last was {last}'}"
        rows = [f"\n  rank {rank} {words}" for rank, words in sorted(found.items()) if rank != self._rank]
        if heartbeat.ends > len(ended):
            rows.append(f"\n  {heartbeat.ends} ranks have come to their end by now")
        return "".join(rows)
