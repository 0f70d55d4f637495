"""What is said of an exchange that another process has left."""

from __future__ import annotations

import time
from typing import final

from accel_state.errors import PeerLost
from accel_state.journal import Journal
from accel_state.stall import ADVICE
from accel_state.transports._turns import Turns

#: seconds that the watch has to end this process, once it was judged
ENDING_S = 2.0
#: words of gloo's for a connection that is no more
_WORDS = ("onnection", "Timed out", "timed out", "Broken pipe", "peer", "remote")


@final
class LostPeer:
    """The errors of a rank whose exchange does not end."""

    def __init__(self, rank: int, size: int, journal: Journal, turns: Turns | None) -> None:
        self._rank, self._ranks, self._journal, self._turns = rank, range(size), journal, turns

    def translated(self, error: RuntimeError) -> RuntimeError:
        """The error itself, or a PeerLost where it says in gloo's words that another process is gone."""
        text = str(error)
        if not any(word in text for word in _WORDS):
            return error
        # of gloo's words only what has happened
        return self.error(text.splitlines()[0].rpartition("] ")[2].partition(". This")[0] or text.splitlines()[0])

    def error(self, found: str) -> PeerLost:
        """The PeerLost that says who is gone, as far as that is known."""
        if self._turns is not None and self._turns.is_judged():
            time.sleep(ENDING_S)  # the watch ends this process too, and its report has more to say
        known = self._turns.whereabouts(self._ranks) if self._turns is not None else ""
        newest = self._journal.newest()
        if known:
            return PeerLost(
                f"rank {self._rank} waits in {newest}, and not all others are there any more:{known}\n"
                f"{ADVICE} A process that failed has said why. ({found})"
            )
        return PeerLost(
            f"rank {self._rank} lost another process, or waited too long for it, in {newest}; what that"
            f" one says, or its log, has the cause ({found})"
        )
