"""Begin an exchange by a message: the call, its line, the digest of the data, and a part of the data."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from accel_comm.errors import CollectiveMismatch
from accel_comm.hang_diagnosis import COMPARED, UNLIKE
from accel_comm.transports._base import Join

#: bytes of what is called, and of the line that calls it, at most
WORDS = 60
#: bytes of what tells the data of ranks apart, at most
ABOUT = 16
_LAYOUT = struct.Struct(f"<{WORDS}s{WORDS}s{WORDS}s{ABOUT}sQBI")
#: bytes of a header without a part
BARE = _LAYOUT.size
#: how ranks differ: they make different calls; they have different data
CALLS, DATA = 1, 2


class Header(NamedTuple):
    """The statement of a rank, or of several together.

    Args:
        what: Name of the operation.
        first_line: Line that calls, the first of all ranks by its file's name.
        last_line: The last of these lines.
        about: Digest of the data.
        longest: Length of the longest payload, in bytes.
        differs: How ranks differ, as the sum of CALLS and DATA.
        part: Payload.
    """

    what: bytes
    first_line: bytes
    last_line: bytes
    about: bytes
    longest: int
    differs: int
    part: bytes

    def packed(self) -> bytes:
        """Return the header as it is sent, which zeros may follow."""
        return _LAYOUT.pack(*self[:6], len(self.part)) + self.part

    @property
    def has_one_line(self) -> bool:
        """True if all ranks call from one line: machines may keep the script in folders of their own."""
        return self.first_line == self.last_line or _name(self.first_line) == _name(self.last_line)


def header(what: str, site: str, about: bytes = b"", part: bytes = b"", longest: int = 0) -> Header:
    """Return the header of this rank.

    Args:
        what: Name of the operation.
        site: File and line that call.
        about: Digest of the data.
        part: Payload.
        longest: Length of the payload, which may be too long for the header.
    """
    words, line = what.encode(errors="replace")[:WORDS], site.encode(errors="replace")[-WORDS:]
    return Header(words.ljust(WORDS, b"\0"), line, line, about.ljust(ABOUT, b"\0"), longest, 0, part)


def unpacked(message: bytes) -> Header:
    """Return the header of a message."""
    *said, count = _LAYOUT.unpack_from(message)
    return Header._make((*said, message[BARE : BARE + count]))


def joined(headers: Sequence[Header], join: Join | None = None) -> Header:
    """Return the header of several ranks, without a part unless there is a `join` and the ranks do not differ."""
    whole = reduce(_both, headers)
    return whole if join is None or whole.differs else whole._replace(part=join([said.part for said in headers]))


def calls(headers: Sequence[Header], ranks: Sequence[int]) -> str:
    """Return a line for each rank: its call, and the line of its script."""
    rows = zip(ranks, headers, strict=True)
    return "".join(f"\n  rank {rank}: {_text(said.what)} at {_text(said.first_line)}" for rank, said in rows)


def require_one_call(headers: Sequence[Header], ranks: Sequence[int]) -> None:
    """Raise if ranks call different operations.

    Raises:
        CollectiveMismatch: With a line for each rank.
    """
    if len({said.what for said in headers}) > 1:
        table = calls(headers, ranks)
        raise CollectiveMismatch(
            f"ranks called different operations at the same time:{table}\ncall the same on every rank"
            f"{UNLIKE * (COMPARED in table)}"
        )


def _both(one: Header, other: Header) -> Header:
    differs = one.differs | other.differs | CALLS * (one.what != other.what) | DATA * (one.about != other.about)
    first, last = one.first_line, one.last_line
    if first != other.first_line or last != other.last_line:
        first, last = min(first, other.first_line, key=_name), max(last, other.last_line, key=_name)
    return Header(one.what, first, last, one.about, max(one.longest, other.longest), differs, b"")


def _name(line: bytes) -> bytes:
    return line.rpartition(b"/")[2].rstrip(b"\0")


def _text(words: bytes) -> str:
    return words.rstrip(b"\0").decode(errors="replace")
