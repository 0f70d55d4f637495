"""The first message of an exchange: who asks for what, from where, and the payload where it is small."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from accel_state.errors import CollectiveMismatch

#: lengths of the payload, of what is asked for, and of the line that asks
_HEAD = struct.Struct("<QBB")

#: bytes of what is asked for, and of the line that asks, at most
WORDS = 60

#: bytes of a header without a payload, at most
BARE = _HEAD.size + 2 * WORDS


def write(what: str, site: str, payload: bytes, length: int) -> bytes:
    """The header, of `length` bytes or, where nothing more is to be said, fewer."""
    words, line = what.encode(errors="replace")[:WORDS], site.encode(errors="replace")[-WORDS:]
    header = _HEAD.pack(len(payload), len(words), len(line)) + words + line
    return header + payload if len(header) + len(payload) <= length else header


class Headers(NamedTuple):
    """What all ranks say: how long their payloads are, and the payloads, unless one is too long to be in here.

    `apart` has a line for each rank where they call the same from different lines.
    """

    lengths: list[int]
    payloads: list[bytes] | None
    apart: str | None = None


def read(headers: Sequence[bytes], ranks: Sequence[int]) -> Headers:
    """The headers of these ranks; what follows a payload does not matter.

    Raises: CollectiveMismatch with a line for each rank where they ask for different things.
    """
    lengths, payloads, said, lines = list[int](), list[bytes](), set[bytes](), set[bytes]()
    whole = True
    for header in headers:
        count, words, line = _HEAD.unpack_from(header)
        begin = _HEAD.size + words
        end = begin + line
        lengths.append(count)
        said.add(header[_HEAD.size : begin])
        lines.add(header[begin:end])
        whole = whole and end + count <= len(header)
        payloads.append(header[end : end + count])
    if len(said) > 1:
        raise CollectiveMismatch(
            f"ranks called different operations at the same time:{_calls(headers, ranks)}\ncall the same on every rank"
        )
    # machines may keep the script in folders of their own
    apart = len(lines) > 1 and len({one.rpartition(b"/")[2] for one in lines}) > 1
    return Headers(lengths, payloads if whole else None, _calls(headers, ranks) if apart else None)


def _calls(headers: Sequence[bytes], ranks: Sequence[int]) -> str:
    """A line for each rank: what it asks for, and where."""
    rows = []
    for rank, header in zip(ranks, headers, strict=True):
        _, words, line = _HEAD.unpack_from(header)
        begin = _HEAD.size + words
        what, site = header[_HEAD.size : begin], header[begin : begin + line]
        rows.append(f"\n  rank {rank}: {what.decode(errors='replace')} at {site.decode(errors='replace')}")
    return "".join(rows)
