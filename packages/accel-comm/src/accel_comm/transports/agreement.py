"""The beginning of an exchange: ranks name their calls, find out whether all are the same, and pass on small data."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports._base import ROOM, Join
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.header import (
    ABOUT,
    BARE,
    CALLS,
    Header,
    calls,
    header,
    joined,
    require_one_call,
    summary,
    unpacked,
)
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.shared_memory import LONGEST, SharedMemoryChannel

logger = logging.getLogger("accel")

#: bytes of a message of the tree, however many ranks it speaks for
BLOCK = 4096


class Agreement(ABC):
    """Messages whose size no rank can change, so that no two of unlike sizes ever meet.

    `room` is how many bytes a part has at most, and `share` how many a payload has that travels with the agreement.
    """

    room: int
    share: int

    def __init__(self, size: int, recorder: FlightRecorder, *, warns: bool) -> None:
        self._ranks, self._recorder, self._warns = range(size), recorder, warns
        self._known_lines = set[tuple[bytes, bytes]]()

    @abstractmethod
    def gather(self, what: str, payload: bytes) -> tuple[list[bytes], int]:
        """The payloads of all ranks in rank order, none if any is longer than `share`; the length of the longest.

        Raises: CollectiveMismatch, with a line for each rank, on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """

    @abstractmethod
    def agree(self, what: str, about: bytes, part: bytes, join: Join) -> Sequence[bytes] | None:
        """The parts in rank order, or fewer that `join` made of them; None on all ranks if `about` differs.

        Raises: CollectiveMismatch, with a line for each rank, on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """

    def _require_room(self, what: str, about: bytes, part: bytes) -> None:
        if len(part) > self.room or len(about) > ABOUT:
            raise ValueError(
                f"{what}: a part of {len(part)} bytes about {len(about)}; {self.room} and {ABOUT} fit into a message"
            )

    def _judge(self, whole: Header, everyone: Sequence[Header]) -> None:
        """Refuses ranks that make different calls, and warns once of each pair of lines that make the same call."""
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
    """Headers that ranks join on their way up a tree, so that the root's speaks for all; details come when asked."""

    def __init__(
        self, tree: BinomialTree, size: int, recorder: FlightRecorder, errors: PeerErrors, *, warns: bool
    ) -> None:
        super().__init__(size, recorder, warns=warns)
        self._tree, self._errors = tree, errors
        self.room = BLOCK - BARE
        self.share = self.room // size - _LENGTH

    def gather(self, what: str, payload: bytes) -> tuple[list[bytes], int]:
        """The payloads of all ranks; none if a payload is too long."""
        length = len(payload)
        part = length.to_bytes(_LENGTH, "little") + payload if length <= self.share else b""
        whole = self._of(what, b"", part, b"".join, length)
        if whole.longest == 0:
            return [b""] * len(self._ranks), 0
        return without_lengths(whole.part) if whole.longest <= self.share else [], whole.longest

    def agree(self, what: str, about: bytes, part: bytes, join: Join) -> Sequence[bytes] | None:
        """The result of `join` over the parts, alone in a list."""
        self._require_room(what, about, part)
        whole = self._of(what, about, part, join, 0)
        return None if whole.differs else [whole.part]

    def _of(self, what: str, about: bytes, part: bytes, join: Join, longest: int) -> Header:
        site = self._recorder.begin(what)
        mine = header(what, site, about, part, longest)

        def join_blocks(blocks: Sequence[bytes]) -> bytes:
            return joined([unpacked(message) for message in blocks], join).packed()

        try:
            with self._errors.translated():
                whole = unpacked(self._tree.all_reduce(mine.packed(), join_blocks))
                bare = [] if self._is_settled(whole) else self._tree.all_gather(mine._replace(part=b"").packed())
        finally:
            self._recorder.end()
        if bare:
            self._judge(whole, [unpacked(message) for message in bare])
        return whole


@final
class SharedMemoryAgreement(Agreement):
    """Headers that every rank reads from memory that all share."""

    room, share = ROOM, LONGEST - BARE

    def __init__(self, channel: SharedMemoryChannel, size: int, recorder: FlightRecorder, *, warns: bool) -> None:
        super().__init__(size, recorder, warns=warns)
        self._channel = channel

    def gather(self, what: str, payload: bytes) -> tuple[list[bytes], int]:
        """The payloads of all ranks; none if a payload is too long."""
        whole, everyone = self._of(what, b"", payload if len(payload) <= self.share else b"", len(payload))
        return [said.part for said in everyone] if whole.longest <= self.share else [], whole.longest

    def agree(self, what: str, about: bytes, part: bytes, join: Join) -> Sequence[bytes] | None:
        """The parts of all ranks."""
        self._require_room(what, about, part)
        whole, everyone = self._of(what, about, part, 0)
        return None if whole.differs else [said.part for said in everyone]

    def _of(self, what: str, about: bytes, part: bytes, longest: int) -> tuple[Header, list[Header]]:
        mine = header(what, self._recorder.begin(what), about, part, longest)
        try:
            messages = self._channel.exchange(mine.packed())
        finally:
            self._recorder.end()
        everyone = [unpacked(message) for message in messages]
        whole = summary(everyone)
        if not self._is_settled(whole):
            self._judge(whole, everyone)
        return whole, everyone


#: bytes of the length of a payload
_LENGTH = 2


def without_lengths(part: bytes) -> list[bytes]:
    """The payloads that stand in a part in a row, each with its length."""
    payloads, start = [], 0
    while start < len(part):
        end = start + _LENGTH + int.from_bytes(part[start : start + _LENGTH], "little")
        payloads.append(part[start + _LENGTH : end])
        start = end
    return payloads
