"""Vote between machines: votes go up and down a tree while the training goes on."""

from __future__ import annotations

from concurrent.futures import Future
from typing import final

from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.agreement import TreeAgreement
from accel_comm.transports.votes import Votes


@final
class PostedVotes(Votes):
    """The votes that a rank posts, and reads when it casts the next.

    A vote has its number in the series in its name: so ranks that are at different votes call different operations.

    Args:
        what: Name of the votes, for error messages.
        agreement: Agreement of the ranks.
        recorder: Flight recorder of this process.
    """

    def __init__(self, what: str, agreement: TreeAgreement, recorder: FlightRecorder) -> None:
        self._what, self._agreement, self._recorder = what, agreement, recorder
        self._cast = 0
        self._newest: Future[tuple[bool, bool]]

    def cast(self, yes: bool) -> bool:
        """Post a vote, and wait for the others' votes before."""
        before = self._newest if self._cast else None
        if before is not None and before.done() and before.exception() is not None:
            self._read(before)  # raises before another vote is posted, which the others would not meet
        self._cast += 1
        self._recorder.number += 1
        self._newest = self._agreement.post(f"{self._what} (vote {self._cast})", yes)
        return before is None or self._read(before)[0]

    def all(self) -> bool:
        """Wait for the newest vote, and return whether all ranks said yes."""
        return self._read(self._newest)[0]

    def any(self) -> bool:
        """Wait for the newest vote, and return whether a rank said yes."""
        return self._read(self._newest)[1]

    def leave(self) -> None:
        """Note an exchange, so that this rank is not missed in a vote for which others still wait."""
        self._recorder.begin(self._what)
        self._recorder.end()

    def _read(self, vote: Future[tuple[bool, bool]]) -> tuple[bool, bool]:
        if not vote.done():
            self._recorder.number -= 1  # a vote is one exchange on each rank, whether the rank waits or not
            self._recorder.begin(self._what)
            try:
                vote.exception()
            finally:
                self._recorder.end()
        return self._agreement.read(vote)
