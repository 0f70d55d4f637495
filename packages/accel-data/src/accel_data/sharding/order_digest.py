"""What tells one order from another: numbers for its items, of whatever kind a sampler yields."""

from __future__ import annotations

import operator
import zlib
from array import array
from typing import Any

#: one item in this many is noted; it is prime, so that no sampler of a regular pattern hides from it
EVERY = 31
#: so are the newest samples, or batches: an order that differs from some place on differs there
NEWEST = 16
NEWEST_BATCHES = 4


def sample_numbers(items: list[Any]) -> array[int]:
    """A number for each item: an index itself, anything else by its content; the same in every process."""
    try:
        return array("Q", items)
    except (TypeError, OverflowError):  # not all are indices
        return array("Q", map(_number, items))


def batch_numbers(batches: list[Any]) -> array[int]:
    """A number for each batch, made of its ends."""
    try:
        return array("Q", [31 * batch[0] + batch[-1] for batch in batches])
    except (TypeError, LookupError, OverflowError):  # not all are lists of indices
        return array("Q", map(_batch_number, batches))


def _batch_number(batch: Any) -> int:
    try:
        return (31 * operator.index(batch[0]) + operator.index(batch[-1])) % 2**64
    except (TypeError, LookupError):  # it has no indices, is empty, or can only be iterated, once
        return _number(batch)


def _number(item: Any) -> int:
    if isinstance(item, list | tuple):
        return zlib.crc32(repr(list(map(_number, item))).encode())
    try:
        return operator.index(item) % 2**64
    except TypeError:
        if hasattr(item, "tolist"):  # a tensor or an array
            return _number(item.tolist())
    words = repr(item)
    # an address is another one in every process
    return zlib.crc32((type(item).__name__ if " at 0x" in words else words).encode())
