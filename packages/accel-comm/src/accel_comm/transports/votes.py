"""Let all ranks vote, yes or no, where a rank learns the result a vote later, when it need not wait for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from accel_comm.transports._base import Transport


class Votes(ABC):
    """A series of votes, of which each rank casts as many as the others, in the same order.

    Each method raises CollectiveMismatch if a rank calls something else, or is at another vote.
    """

    @abstractmethod
    def cast(self, yes: bool) -> bool:
        """Cast a vote, and return whether all ranks said yes in the vote before, or this one is the first.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def all(self) -> bool:
        """Wait for the newest vote, and return whether all ranks said yes."""

    @abstractmethod
    def any(self) -> bool:
        """Wait for the newest vote, and return whether a rank said yes."""

    @abstractmethod
    def leave(self) -> None:
        """End the series of this rank, which has cast its last vote and waits for no other.

        Collective:
            Every rank must call, after the same vote.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the series if a generator is closed in the block, as by a `break` in the script's loop."""
        if kind is GeneratorExit:
            self.leave()


@final
class AgreedVotes(Votes):
    """The votes by `agree` of a transport that waits for no process.

    Collective:
        Every rank must make one.
    """

    def __init__(self, what: str, transport: Transport) -> None:
        self._what, self._transport = what, transport
        self._all = self._any = True

    def cast(self, yes: bool) -> bool:
        """Cast a vote."""
        before = self._all
        alike = self._transport.agree(self._what, b"1" if yes else b"0") is not None
        self._all, self._any = yes and alike, yes or not alike
        return before

    def all(self) -> bool:
        """Return whether all ranks said yes in the newest vote."""
        return self._all

    def any(self) -> bool:
        """Return whether a rank said yes in the newest vote."""
        return self._any

    def leave(self) -> None:
        """Do nothing: all ranks know the votes of all."""
