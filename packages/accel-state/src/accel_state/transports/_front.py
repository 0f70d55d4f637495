"""The first message of an exchange: who asks for what, from where, and the payload where it is small."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from accel_state.errors import CollectiveMismatch

_HEAD = struct.Struct("<QHH")  # lengths of the payload, of what is asked for, and of the line that asks

#: bytes of what is asked for, and of the line that asks, at most
WORDS = 60


def length_for(size: int) -> int:
    """Bytes of a front in a world of that size: every rank gets those of all."""
    return max(256, min(4096, 65536 // size))


def write(what: str, site: str, payload: bytes, length: int) -> bytes:
    """The front, of `length` bytes or, where nothing more is to be said, fewer."""
    words, line = what.encode(errors="replace")[:WORDS], site.encode(errors="replace")[-WORDS:]
    front = _HEAD.pack(len(payload), len(words), len(line)) + words + line
    return front + payload if len(front) + len(payload) <= length else front


@dataclass(frozen=True, slots=True)
class Fronts:
    """What all ranks say: how long their payloads are, and the payloads, unless one is too long to be in here.

    `apart` has a line for each rank where they call the same from different lines.
    """

    lengths: list[int]
    payloads: list[bytes] | None
    apart: str | None = None


def read(fronts: bytes | bytearray, length: int, ranks: Sequence[int]) -> Fronts:
    """The fronts of these ranks, one after the other.

    Raises: CollectiveMismatch with a line for each rank where they ask for different things.
    """
    lengths, payloads, said, lines, whole = list[int](), list[bytes](), list[bytes](), set[bytes](), True
    for start in range(0, len(fronts), length):
        count, words, line = _HEAD.unpack_from(fronts, start)
        begin = start + _HEAD.size
        payload = begin + words + line
        lengths.append(count)
        said.append(bytes(fronts[begin : begin + words]))
        # machines may keep the script in folders of their own
        lines.add(bytes(fronts[begin + words : payload]).rpartition(b"/")[2])
        whole = whole and payload + count <= start + length
        if whole:
            payloads.append(bytes(fronts[payload : payload + count]))
    if any(one != said[0] for one in said):
        raise CollectiveMismatch(
            f"ranks called different operations at the same time:{_calls(fronts, length, ranks)}\ncall the same on"
            " every rank"
        )
    apart = _calls(fronts, length, ranks) if len(lines) > 1 else None
    return Fronts(lengths, payloads if whole else None, apart)


def _calls(fronts: bytes | bytearray, length: int, ranks: Sequence[int]) -> str:
    """A line for each rank: what it asks for, and where."""
    rows = []
    for rank, start in zip(ranks, range(0, len(fronts), length), strict=True):
        _, words, line = _HEAD.unpack_from(fronts, start)
        begin = start + _HEAD.size
        what, site = fronts[begin : begin + words], fronts[begin + words : begin + words + line]
        rows.append(f"\n  rank {rank}: {what.decode(errors='replace')} at {site.decode(errors='replace')}")
    return "".join(rows)
