"""What a rank is about to do, in a block of one length, and what all of them are, in another such block."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from accel_state.transports.header import WORDS

#: bytes of a block, however many ranks it speaks for
SIZE = 4096
#: bytes of what tells the data of ranks apart, at most
ABOUT = 16
#: what is asked for; the first and the last of the lines that ask, by the alphabet; what tells the data apart; the
#: longest payload, the verdict, and the bytes of the part
_HEAD = struct.Struct(f"<{WORDS}s{WORDS}s{WORDS}s{ABOUT}sQBH")
#: bytes of a part, at most
ROOM = SIZE - _HEAD.size
#: verdicts: ranks ask for different things; their data differs
DIFFERENT, UNLIKE = 1, 2

Join = Callable[[Sequence[bytes]], bytes]


class Block(NamedTuple):
    """What some ranks say together."""

    what: bytes
    first_line: bytes
    last_line: bytes
    about: bytes
    longest: int
    verdict: int
    part: bytes


_Head = tuple[bytes, bytes, bytes, bytes, int, int, int]


def write(what: str, site: str, about: bytes, part: bytes, longest: int) -> bytes:
    """One rank's block, which is shorter than `SIZE` where its part is.

    Raises: ValueError for a part that does not fit.
    """
    if len(part) > ROOM or len(about) > ABOUT:
        raise ValueError(f"{what}: a part of {len(part)} bytes about {len(about)}; {ROOM} and {ABOUT} fit into a block")
    words = what.encode(errors="replace")[:WORDS]
    # machines may keep the script in folders of their own
    line = site.rpartition("/")[2].encode(errors="replace")[-WORDS:]
    return _HEAD.pack(words, line, line, about, longest, 0, len(part)) + part


def joined(blocks: Sequence[bytes], join: Join) -> bytes:
    """The block that says what these say together; with a verdict it has no part."""
    whole = reduce(_both, [_HEAD.unpack_from(one) for one in blocks])
    part = b"" if whole[5] else join([_part(one) for one in blocks])
    return _HEAD.pack(*whole[:6], len(part)) + part


def read(block: bytes) -> Block:
    """What a block says."""
    return Block._make((*_HEAD.unpack_from(block)[:6], _part(block)))


def with_length(payload: bytes) -> bytes:
    """A payload as a part that can be told from others behind it."""
    return len(payload).to_bytes(2, "little") + payload


def without_lengths(part: bytes) -> list[bytes]:
    """The payloads that stand in a part one behind the other, each with its length."""
    found, start = [], 0
    while start < len(part):
        end = start + 2 + int.from_bytes(part[start : start + 2], "little")
        found.append(part[start + 2 : end])
        start = end
    return found


def _part(block: bytes) -> bytes:
    count = _HEAD.unpack_from(block)[6]
    return block[_HEAD.size : _HEAD.size + count]


def _both(one: _Head, other: _Head) -> _Head:
    what, first, last, about, longest, verdict, count = one
    verdict |= other[5]
    if other[0] != what:
        verdict |= DIFFERENT
    if other[3] != about:
        verdict |= UNLIKE
    return what, min(first, other[1]), max(last, other[2]), about, max(longest, other[4]), verdict, count
