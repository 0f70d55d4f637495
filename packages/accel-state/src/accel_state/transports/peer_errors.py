"""What is said of an exchange that another process has left."""

from __future__ import annotations

import time
from typing import final

from accel_state.errors import PeerLost
from accel_state.flight_recorder import FlightRecorder
from accel_state.hang_diagnosis import ADVICE
from accel_state.transports.ordered_section import OrderedSection

#: seconds that the watchdog has to end this process, once it was diagnosed
ENDING_S = 2.0
#: words of gloo's for a connection that is no more
_WORDS = ("onnection", "Timed out", "timed out", "Broken pipe", "peer", "remote")


@final
class PeerErrors:
    """The errors of a rank whose exchange does not end."""

    def __init__(self, rank: int, size: int, recorder: FlightRecorder, sections: OrderedSection | None) -> None:
        self._rank, self._ranks, self._recorder, self._sections = rank, range(size), recorder, sections

    def translated(self, error: RuntimeError) -> RuntimeError:
        """The error itself, or a PeerLost where it says in gloo's words that another process is gone."""
        text = str(error)
        if not any(word in text for word in _WORDS):
            return error
        # of gloo's words only what has happened
        return self.error(text.splitlines()[0].rpartition("] ")[2].partition(". This")[0] or text.splitlines()[0])

    def error(self, found: str) -> PeerLost:
        """The PeerLost that says who is gone, as far as that is known."""
        if self._sections is not None and self._sections.is_diagnosed():
            time.sleep(ENDING_S)  # the watchdog ends this process too, and its report has more to say
        known = self._sections.whereabouts(self._ranks) if self._sections is not None else ""
        newest = self._recorder.newest()
        if known:
            return PeerLost(
                f"rank {self._rank} waits in {newest}, and not all others are there any more:{known}\n"
                f"{ADVICE} A process that failed has said why. ({found})"
            )
        return PeerLost(
            f"rank {self._rank} lost another process, or waited too long for it, in {newest}; what that"
            f" one says, or its log, has the cause ({found})"
        )
