"""The number that all ranks read: how often was asked, how many have ended, signs of life, whether a hang is found."""

from __future__ import annotations

from typing import NamedTuple

#: what is added to the number: for a question to all, a process at its end, a sign of life of rank 0, a verdict
QUESTION, END, BEAT, DIAGNOSED = 1, 1 << 20, 1 << 38, 1 << 62


class Heartbeat(NamedTuple):
    """What the number says. One request reads it and adds to it."""

    questions: int
    ends: int
    beats: int
    diagnosed: bool

    @classmethod
    def of(cls, number: int) -> Heartbeat:
        """The parts of the number: 2**20 questions, 2**18 ranks, 2**24 signs of life."""
        return cls(number % END, number % BEAT // END, number % DIAGNOSED // BEAT, number >= DIAGNOSED)
