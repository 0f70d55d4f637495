"""Begin an exchange: ranks name their calls, find out whether all are the same, and pass on small data."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, final

from accel_comm.flight_recorder import FlightRecorder, call_site
from accel_comm.transports._base import ROOM, Join, longest_of
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.header import ABOUT, BARE, CALLS, Header, calls, header, joined, require_one_call, unpacked
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.posted import post
from accel_comm.transports.shared_memory import LONGEST, SharedMemoryChannel

logger = logging.getLogger("accel")

T = TypeVar("T")

#: bytes of a message of the tree, however many ranks it speaks for
BLOCK = 4096
#: bytes of the length of a payload
_LENGTH = 2


class Agreement(ABC):
    """The first messages of exchanges, whose size no rank can change, so that no two of unlike sizes ever meet.

    Args:
        size: Number of ranks.
        recorder: Flight recorder of this process.
        warns: Whether this rank warns of different lines.
    """

    #: most bytes of a part
    room: int
    #: most bytes of a payload that is in the agreement
    share: int

    def __init__(self, size: int, recorder: FlightRecorder, *, warns: bool) -> None:
        self._ranks, self._recorder, self._warns = range(size), recorder, warns
        self._known_lines = set[tuple[bytes, bytes]]()

    @abstractmethod
    def gather(self, what: str, payload: bytes) -> tuple[Sequence[bytes], int]:
        """Return the payloads of all ranks in rank order, none if any is longer than `share`, and the longest length.

        Raises:
            CollectiveMismatch: On every rank, with a line for each rank, if `what` differs.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def _exchanged(self, mine: Header, join: Join) -> tuple[Header, Sequence[bytes]]:
        """Return the header of all ranks together, and the parts in rank order, or fewer that `join` has made."""

    def _of(
        self, what: str, join: Join, about: bytes = b"", part: bytes = b"", longest: int = 0
    ) -> tuple[Header, Sequence[bytes]]:
        mine = header(what, self._recorder.begin(what), about, part, longest)
        try:
            return self._exchanged(mine, join)
        finally:
            self._recorder.end()

    def agree(self, what: str, about: bytes, part: bytes, join: Join) -> Sequence[bytes] | None:
        """Return the parts in rank order, or fewer that `join` has made of them, or None if `about` differs.

        Args:
            what: Name of the operation.
            about: Digest of the data.
            part: Payload of this rank.
            join: Function that makes one part of several.

        Raises:
            CollectiveMismatch: On every rank, with a line for each rank, if `what` differs.

        Collective:
            Every rank must call.
        """
        if len(part) > self.room or len(about) > ABOUT:
            raise ValueError(
                f"{what}: a part of {len(part)} bytes about {len(about)}; {self.room} and {ABOUT} fit into a message"
            )
        whole, parts = self._of(what, join, about, part)
        return None if whole.differs else parts

    def _judge(self, whole: Header, everyone: Sequence[Header]) -> None:
        """Refuse ranks that make different calls, and warn once of each pair of lines that make the same call."""
        require_one_call(everyone, self._ranks)
        self._known_lines.add((whole.first_line, whole.last_line))
        if self._warns:
            logger.warning(
                "ranks call the same from different lines; if that is not meant, look for a call inside an `if`, or"
                " after a `break`:%s",
                calls(everyone, self._ranks),
            )

    def _is_settled(self, whole: Header) -> bool:
        if whole.differs & CALLS:
            return False
        return whole.has_one_line or (whole.first_line, whole.last_line) in self._known_lines


@final
class TreeAgreement(Agreement):
    """The headers that ranks join on their way up a tree, so that the root's speaks for all.

    Votes may be under way behind the training. Whatever comes after them begins when they are over: each call and each
    vote of a rank meets that of the same number on the others.

    Args:
        tree: Messages between the ranks.
        size: Number of ranks.
        recorder: Flight recorder of this process.
        errors: Errors of an exchange that another process has left.
        warns: Whether this rank warns of different lines.
    """

    def __init__(
        self,
        tree: BinomialTree,
        size: int,
        recorder: FlightRecorder,
        errors: PeerErrors,
        *,
        warns: bool,
    ) -> None:
        super().__init__(size, recorder, warns=warns)
        self._tree, self._errors = tree, errors
        self._newest: Future[Any] | None = None
        self.room = BLOCK - BARE
        self.share = self.room // size - _LENGTH

    def gather(self, what: str, payload: bytes) -> tuple[Sequence[bytes], int]:
        """Return the payloads of all ranks, none if a payload is too long, and the longest length."""
        length = len(payload)
        part = length.to_bytes(_LENGTH, "little") + payload if length <= self.share else b""
        whole, _ = self._of(what, b"".join, part=part, longest=length)
        return without_lengths(whole.part) if whole.longest <= self.share else [], whole.longest

    def post(self, what: str, yes: bool) -> Future[tuple[bool, bool]]:
        """Begin a vote, and return its result to come: whether all ranks say yes, and whether a rank does.

        Args:
            what: Name of the vote, which has to be the same on all ranks.
            yes: Vote of this rank.

        Collective:
            Every rank must call.
        """
        mine = header(what, call_site(), b"1" if yes else b"0")

        def vote() -> tuple[bool, bool]:
            alike = not self._on_tree(mine, longest_of).differs
            return yes and alike, yes or not alike

        self._newest = posted = post(vote, self._newest, self._tree.abandon)
        return posted

    def read(self, posted: Future[T]) -> T:
        """Wait for a vote, and return its result.

        Raises:
            CollectiveMismatch: On every rank, with a line for each rank, if ranks call different operations.
            PeerLost: If another process is gone.
        """
        with self._errors.translated():
            try:
                return posted.result()
            except RuntimeError:
                self._settle()  # the votes that came after it have failed with it
                raise

    def _settle(self) -> None:
        if (newest := self._newest) is not None:
            newest.exception()  # an interrupt of this wait forgets nothing
            self._newest = None
            newest.result()

    def _exchanged(self, mine: Header, join: Join) -> tuple[Header, Sequence[bytes]]:
        with self._errors.translated():
            self._settle()
            whole = self._on_tree(mine, join)
        return whole, [whole.part]

    def _on_tree(self, mine: Header, join: Join) -> Header:
        """Return the header of all ranks together."""

        def join_blocks(blocks: Sequence[bytes]) -> bytes:
            return joined([unpacked(message) for message in blocks], join).packed()

        whole = unpacked(self._tree.all_reduce(mine.packed(), join_blocks))
        if not self._is_settled(whole):
            self._judge(whole, [unpacked(row) for row in self._tree.gather(mine._replace(part=b"").packed())])
        return whole


@final
class SharedMemoryAgreement(Agreement):
    """The headers that every rank reads from memory that all share.

    Args:
        channel: Messages in that memory.
        size: Number of ranks.
        recorder: Flight recorder of this process.
        warns: Whether this rank warns of different lines.
    """

    room, share = ROOM, LONGEST - BARE

    def __init__(self, channel: SharedMemoryChannel, size: int, recorder: FlightRecorder, *, warns: bool) -> None:
        super().__init__(size, recorder, warns=warns)
        self._channel = channel

    def gather(self, what: str, payload: bytes) -> tuple[Sequence[bytes], int]:
        """Return the payloads of all ranks, none if a payload is too long, and the longest length."""
        part = payload if len(payload) <= self.share else b""
        whole, parts = self._of(what, b"".join, part=part, longest=len(payload))
        return parts if whole.longest <= self.share else [], whole.longest

    def _exchanged(self, mine: Header, join: Join) -> tuple[Header, Sequence[bytes]]:
        everyone = [unpacked(message) for message in self._channel.exchange(mine.packed())]
        whole = joined(everyone)
        if not self._is_settled(whole):
            self._judge(whole, everyone)
        return whole, [said.part for said in everyone]


def without_lengths(part: bytes) -> list[bytes]:
    """Return the payloads that a part has in a row, each behind its length."""
    payloads, start = [], 0
    while start < len(part):
        end = start + _LENGTH + int.from_bytes(part[start : start + _LENGTH], "little")
        payloads.append(part[start + _LENGTH : end])
        start = end
    return payloads
