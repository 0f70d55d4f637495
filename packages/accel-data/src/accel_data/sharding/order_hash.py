"""Numbers for the items of an order: indices, or batches of them, of whatever kind a sampler yields."""

from __future__ import annotations

import operator
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

#: what an item is that cannot be looked at without using it up
OPAQUE = -1
#: a number of 64 bits
FULL = 2**64 - 1


def numbers(items: Sequence[Any]) -> array[int]:
    """One number for each item: an index itself, anything else by its content."""
    try:
        return array("q", items)
    except (TypeError, OverflowError):  # not all are indices
        return array("q", map(_number, items))


def first_numbers(batches: Sequence[Any]) -> array[int]:
    """The number of the first item of each batch."""
    try:
        return numbers([batch[0] for batch in batches])
    except (TypeError, LookupError):  # some are empty, or can only be iterated, once
        return array("q", [_number(batch[0]) if _can_be_read(batch) and len(batch) else OPAQUE for batch in batches])


def batch_hash(batch: Any) -> int:
    """A number for the items of a batch; of a list of indices, for their sum, their number, and the first and last."""
    if type(batch) is list and batch:
        try:
            total = sum(batch)
        except TypeError:  # not all are indices
            total = None
        if type(total) is int and type(batch[0]) is int:
            return hash((total, len(batch), batch[0], batch[-1])) & FULL
    if not _can_be_read(batch):
        return zlib.crc32(type(batch).__name__.encode())
    return zlib.crc32(numbers(batch))


def _can_be_read(batch: Any) -> bool:
    return type(batch) in (list, tuple) or (hasattr(batch, "__len__") and hasattr(batch, "__getitem__"))


def _number(item: Any) -> int:
    if isinstance(item, list | tuple):
        return zlib.crc32(numbers(item))
    try:
        number = operator.index(item)
    except TypeError:
        # the words for an object without some of its own hold its address; mypy takes the two functions for unlike
        named = type(item).__repr__ is not object.__repr__  # type: ignore[comparison-overlap]
        return zlib.crc32((repr(item) if named else type(item).__name__).encode())
    return number if abs(number) < 2**63 else zlib.crc32(repr(number).encode())
