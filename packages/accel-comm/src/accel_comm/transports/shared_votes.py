"""Vote through memory that the processes of one machine share: to cast a vote is to write a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from accel_comm.errors import CollectiveMismatch
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.shared_memory import VOTES, SharedMemoryChannel
from accel_comm.transports.votes import Votes

#: a word has the number of the vote in the run, from this bit on, and below its number in the series, and the vote
NUMBER, SERIES = 24, 2**23 - 1


@final
class SharedMemoryVotes(Votes):
    """The votes that a rank writes, and reads when it casts the next.

    To count the votes of all takes 1 µs. The votes of all series of a channel have one count. A rank that casts a vote
    has seen all votes but the newest two, so four words of each rank are enough.

    Args:
        what: Name of the votes, for error messages.
        channel: Shared memory.
        recorder: Flight recorder of this process.
        refuse: Function to call if a rank exchanges a message instead of a vote for which this rank waits: it exchanges
            one as well, and so finds out that the calls differ.
    """

    def __init__(
        self, what: str, channel: SharedMemoryChannel, recorder: FlightRecorder, refuse: Callable[[], object]
    ) -> None:
        self._what, self._channel, self._recorder, self._refuse = what, channel, recorder, refuse
        self._words, self._places, self._mine = channel.words_of_votes()
        #: votes of this series, and the word of a yes in the newest; 0 if that vote is counted
        self._cast, self._yes = 0, 0
        self._was_unanimous = True

    def cast(self, yes: bool) -> bool:
        """Write a vote, and wait for the others' votes before."""
        channel, words, before = self._channel, self._words, self._yes
        if channel.series is not self:
            before = self._take_over()
        channel.votes = number = channel.votes + 1
        self._recorder.number += 1
        self._yes = word = number << NUMBER | self._cast << 1 | 1
        self._cast = self._cast + 1 & SERIES
        words[self._mine + number % VOTES] = word if yes else word - 1
        slot = (number - 1) % VOTES
        for place in self._places:
            if words[place + slot] != before:
                return self._was_unanimous if before == 0 else self._count(before) == len(self._places)
        return True

    def all(self) -> bool:
        """Wait for the newest vote, and return whether all ranks said yes."""
        return self._count(self._yes) == len(self._places)

    def any(self) -> bool:
        """Wait for the newest vote, and return whether a rank said yes."""
        return self._count(self._yes) > 0

    def leave(self) -> None:
        """Note an exchange, so that this rank is not missed in a vote for which others still wait."""
        self._recorder.begin(self._what)
        self._recorder.end()

    def _take_over(self) -> int:
        """Count the newest vote of the series before, whose votes will be written over."""
        before, self._channel.series = self._channel.series, self
        if before is not None:
            before._was_unanimous, before._yes = before._count(before._yes) == len(self._places), 0
        return self._yes

    def _count(self, yes: int) -> int:
        """Return how many votes say yes, once all are cast."""
        number = yes >> NUMBER
        said = []
        for rank, place in enumerate(self._places):
            word = place + number % VOTES
            self._await(word, number << NUMBER, rank)
            said.append(self._words[word])
        if {vote | 1 for vote in said} != {yes}:
            votes = "".join(f"\n  rank {rank}: {(vote >> 1) & SERIES}" for rank, vote in enumerate(said))
            raise CollectiveMismatch(
                f"ranks are at different places of their loops ({self._what}), after so many batches:{votes}\n"
                "look for a `break`, or an error that is caught, on some ranks only"
            )
        return sum(vote & 1 for vote in said)

    def _await(self, word: int, least: int, rank: int) -> None:
        if self._channel.sees_vote(word, least):
            return
        self._recorder.number -= 1  # a vote is one exchange on each rank, whether the rank waits or not
        self._recorder.begin(self._what)
        try:
            self._channel.await_vote(word, least, rank)
        finally:
            self._recorder.end()
        if self._words[word] < least:
            self._refuse()
