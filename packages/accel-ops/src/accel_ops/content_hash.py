"""Digest values by their length and a sample of their entries, so that a million cost what 256 do.

Equal values have equal digests in every process, and a digest calls no code of the value's own.
"""

from __future__ import annotations

import hashlib
import operator
import re
import sys
import zlib
from array import array
from contextlib import suppress
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any

import torch

#: entries read of a value in all, and of one container; columns of a table; characters at either end of a text
ROOM, WANTED, COLUMNS, ENDS = 1024, 256, 8, 256
#: the folders of an absolute path
FOLDERS = re.compile(r"\A(/|[A-Za-z]:[\\/])(.*[\\/])?")
#: how the names of those types of Arrow begin whose values are small
SMALL = ("bool", "int", "uint", "float", "double", "string", "large_string")


def digest_of(value: object, room: int = ROOM) -> str | None:
    """Return twelve hexadecimal digits for the content of a container, tensor or array.

    Args:
        value: Any value.
        room: About how many entries to read.

    Returns:
        The digits, or None for an empty container, a dataclass, a number, a text or another object.
    """
    summary = None if hasattr(type(value), "__dataclass_fields__") else _summary(value, room, settings=True)
    return None if summary in (None, ["0"]) else hexadecimal(summary)


def hexadecimal(summary: object) -> str:
    """Return twelve hexadecimal digits for nested lists of texts."""
    return hashlib.blake2b(ascii(summary).encode(), digest_size=6).hexdigest()


def positions(length: int, wanted: int) -> list[int]:
    """Choose positions to sample: the first, the last, and one of each of `wanted` equal stretches.

    The position within a stretch varies. Otherwise every sampled element of a stack of pictures could be of one column.

    Args:
        length: Number of entries to choose from.
        wanted: Number of stretches; all positions are chosen if there are no more.
    """
    if length <= wanted:
        return list(range(length))
    inner = [index * length // wanted + index * 2654435761 % (length // wanted) for index in range(wanted)]
    return sorted({0, *inner, length - 1})


def own_attributes(value: object) -> dict[str, Any]:
    """Return the entries of `vars(value)` in the order of their names, or {} if the value has none."""
    with suppress(AttributeError, TypeError):
        items = object.__getattribute__(value, "__dict__").items()
        return dict(sorted(item for item in items if type(item[0]) is str))
    return {}


def content_number(item: Any) -> int:
    """Return an index itself, and any other value as a checksum of all of it.

    The number is the same in every process.
    """
    if isinstance(item, list | tuple):
        return zlib.crc32(repr(list(map(content_number, item))).encode())
    try:
        return operator.index(item) % 2**64
    except TypeError:
        if hasattr(item, "tolist"):  # a tensor or an array
            return content_number(item.tolist())
    words = repr(item)
    # an address is another one in every process
    return zlib.crc32((type(item).__name__ if " at 0x" in words else words).encode())


def _summary(value: Any, room: int, *, settings: bool = False, noise: float = 0.0) -> Any:
    """Return nested lists of texts that stand for a value, of which about `room` entries are read."""
    wanted = min(max(room, 1), WANTED)
    value = _plain(value, wanted)
    # not isinstance(), which asks the value for its __class__: a proxy may answer in its own way
    kinds: Any = (dict, list, tuple, range, array)
    kind = next((kind for kind in kinds if issubclass(type(value), kind)), None)
    if kind is None:
        return None if settings else _text(value, noise)
    # len() knows no number above 2**63
    length = max(-((value.start - value.stop) // value.step), 0) if kind is range else kind.__len__(value)
    summary: list[Any] = [f"{length:x}"]
    inner = partial(_summary, room=room // max(min(length, wanted), 2))
    if room and kind is dict:
        items = islice(dict.items(value), wanted)
        summary += sorted(([inner(key), inner(entry, settings=settings)] for key, entry in items), key=ascii)
    elif room:
        entries = [kind.__getitem__(value, place) for place in positions(length, wanted)]
        sizes = [abs(entry) for entry in entries if issubclass(type(entry), float) and isfinite(entry)]
        summary += [inner(entry, noise=max(sizes, default=0.0) * 1e-6) for entry in entries]
    return summary


def _plain(value: Any, wanted: int) -> Any:
    """Return a record, a set or an object of a library as plain values, and another value as it is."""
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: entry for name, entry in own_attributes(value).items() if name in kind.__dataclass_fields__}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, tuple.__iter__(value), strict=False))
    for base in kind.__mro__:
        # by name: who has a value of a library has imported that library, and no other is imported
        match f"{str(base.__module__).partition('.')[0]}.{base.__name__}":
            case "builtins.set" | "builtins.frozenset":
                # Python orders texts in a set anew in every process
                length = base.__len__(value)
                return dict.fromkeys(set(value)) if length <= wanted else [length]
            case "enum.Enum":
                return value.name
            case "pathlib.PurePath" | "datetime.date" | "datetime.timedelta":
                return str(value)
            case "numpy.generic":
                return value.item()
            case "numpy.ndarray" if value.size:
                elements = sys.modules["numpy"].asarray(value).flat[positions(value.size, wanted)]
                return [f"{value.dtype} {list(value.shape)}", elements.tolist()]
            case "torch.Tensor" if value.numel():
                summary: list[Any] = [f"{value.dtype} {list(value.shape)}"]
                if base is kind or kind is torch.nn.Parameter:  # a DTensor, for one, would exchange data to be read
                    with suppress(RuntimeError):  # what a layout, dtype, device or mode of torch does not do
                        places = torch.tensor(positions(value.numel(), wanted), device="cpu")
                        summary.append(value[torch.unravel_index(places, value.shape)].tolist())
                return summary
            case "pandas.DataFrame" | "pandas.Series" | "pandas.Index" if len(value):
                return [len(value), value.take(positions(len(value), wanted)).to_numpy()]
            case "pyarrow.Table" if len(value):
                rows = positions(len(value), wanted)
                small = [column for column in value.columns if str(column.type).startswith(SMALL)][:COLUMNS]
                return [len(value), value.column_names, *([column[row].as_py() for row in rows] for column in small)]
    return value


def _text(value: Any, noise: float) -> Any:
    kind = type(value)
    if issubclass(kind, (str, bytes)):
        # where the copy of this machine or process lies is its own affair
        value = FOLDERS.sub("", str.__str__(value)) if issubclass(kind, str) else value
        return [len(value), value[:ENDS], value[-ENDS:]]
    if issubclass(kind, int):
        return f"{int.__index__(value):x}"
    if issubclass(kind, float):
        # Machines differ in the last bits, and in what is left of a sum that should be zero. The factor moves round
        # numbers, such as 1.125, away from the border between two roundings.
        return "0" if abs(value) <= noise else f"{float.__float__(value) * 1.0001734:.2e}"
    return kind.__name__
