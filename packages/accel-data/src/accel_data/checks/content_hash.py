"""Short digests of values: of their shape, length and a sample of their entries, so that a million cost what 256 do.

Equal values have equal digests in every process, and reading one calls no code of the value's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import PurePath
from typing import Any

import torch

#: entries read of a container inside another, by how deep it is; deeper ones count as their type and length
INNER = (4, 2, 2)
#: characters read at either end of a text
ENDS = 256
ABSOLUTE = re.compile(r"/|[A-Za-z]:[\\/]")
SEQUENCES = (list, tuple, range, array)


def digest_of(value: object, entries: int = 256) -> str | None:
    """Twelve hexadecimal digits for a container, tensor or array; None for what is empty or something else."""
    if is_scalar(value) or dataclasses.is_dataclass(type(value)) or not _length(value):
        return None
    return hexadecimal(_tokens(value, (entries, *INNER), settings=True))


def is_scalar(value: object) -> bool:
    """Whether it is a number, a text, a path, a member of an Enum or None."""
    return _kind(value) == "scalar"


def hexadecimal(tokens: Iterable[str]) -> str:
    """Twelve hexadecimal digits that stand for the tokens in their order."""
    state = hashlib.blake2b(digest_size=6)
    for token in tokens:
        data = token.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


def positions(length: int, wanted: int) -> list[int]:
    """The first, the last, and one position out of each of `wanted` equal stretches; all where there are no more.

    The place within a stretch varies, or every sampled element of a stack of pictures could be of the same column.
    """
    if length <= wanted:
        return list(range(length))
    starts = [stretch * length // wanted for stretch in range(wanted + 1)]
    inner = [start + (index * 2654435761) % (stop - start) for index, (start, stop) in enumerate(pairwise(starts))]
    return sorted({0, *inner, length - 1})


# type() and not isinstance(): the latter asks the value for its __class__, which a proxy may answer in its own way.
def _is(value: object, *kinds: type) -> bool:
    return issubclass(type(value), kinds)


def _of(value: object, module: str, *names: str) -> bool:
    # a value of a class that is in a module has brought that module with it: nothing is imported for the question
    found = sys.modules.get(module)
    return found is not None and _is(value, *(vars(found)[name] for name in names if name in vars(found)))


def _kind(value: object) -> str:
    if value is None or _is(value, bool, int, float, complex, str, bytes, Enum, PurePath):
        return "scalar"
    if _is(value, tuple) and hasattr(type(value), "_fields"):
        return "record"
    if _is(value, *SEQUENCES):
        return "sequence"
    if _is(value, dict):
        return "mapping"
    if _is(value, set, frozenset):
        return "set"
    if _is(value, torch.Tensor):
        return "tensor"
    if _of(value, "numpy", "ndarray"):
        return "array"
    if _of(value, "numpy", "generic"):
        return "scalar"
    if _of(value, "pandas", "DataFrame", "Series", "Index"):
        return "frame"
    if _of(value, "pyarrow", "Table"):
        return "table"
    return "record" if dataclasses.is_dataclass(type(value)) else ""


def _fields(value: Any) -> dict[str, Any]:
    if _is(value, tuple):
        return dict(zip(type(value)._fields, tuple.__iter__(value), strict=False))
    found = own_attributes(value)
    return {one.name: found[one.name] for one in dataclasses.fields(type(value)) if one.name in found}


def _length(value: Any) -> int:
    kind = _kind(value)
    if kind == "tensor":
        return int(value.numel())
    if kind == "array":
        return int(value.size)
    if kind in ("frame", "table"):
        return len(value)
    if kind == "record":
        return len(_fields(value))
    if _is(value, range):  # len() knows no number above 2**63
        return int(max(-((value.start - value.stop) // value.step), 0))
    for base in (*SEQUENCES, dict, set, frozenset):
        if _is(value, base):
            return int(base.__len__(value))
    return 0


def _tokens(value: Any, room: Sequence[int], *, settings: bool = False) -> Iterator[str]:
    """`room` is for entries of the value, for entries of those, and so on.

    In `settings`, outside of any sequence, scalars do not count: such as the path or the rank of this process.
    """
    kind = _kind(value)
    if kind == "scalar":
        if not settings:
            yield _scalar(value)
        return
    length = _length(value)
    yield f"{kind or type(value).__name__} {length:x}"
    if not room:
        return
    if kind == "sequence":
        read = next(base for base in SEQUENCES if _is(value, base)).__getitem__
        for position in positions(length, room[0]):
            yield from _tokens(read(value, position), room[1:])
    elif kind in ("mapping", "record"):
        entries = value if kind == "mapping" else _fields(value)
        for name, key in _keys(entries, room):
            yield name
            yield from _tokens(dict.__getitem__(entries, key), room[1:], settings=settings)
    elif kind == "set":
        # Python orders texts in a set anew in every process
        if length <= room[0]:
            yield from sorted(hexadecimal(_tokens(entry, room[1:])) for entry in set(value))
    elif kind == "tensor":
        yield from _tensor(value, room[0])
    elif kind == "array":
        yield from _array(value, room)
    elif kind == "frame":
        yield from _frame(value, room)
    elif kind == "table":
        yield from _table(value, room)


def _keys(value: dict[Any, Any], room: Sequence[int]) -> list[tuple[str, Any]]:
    keys = list(islice(dict.keys(value), room[0]))
    if len(keys) < dict.__len__(value):
        keys = keys[: room[0] // 2] + list(islice(dict.__reversed__(value), room[0] // 2))
    return sorted((("\0".join(_tokens(key, room[1:])), key) for key in keys), key=itemgetter(0))


def own_attributes(value: object) -> dict[Any, Any]:
    """A copy of what `vars` has of the value; empty where it has none."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


def _scalar(value: Any) -> str:
    if _is(value, Enum):
        return f"{type(value).__name__} {value.name}"
    if _of(value, "numpy", "generic"):
        value = value.item()
    if _is(value, bytes):
        return f"{bytes.__len__(value)} {value[:ENDS].hex()} {value[-ENDS:].hex()}"
    if _is(value, str, PurePath):
        text = str.__str__(value) if _is(value, str) else str(value)
        if (
            ABSOLUTE.match(text) and len(text) < 4096
        ):  # where the copy of this machine or process lies is its own affair
            return re.split(r"[\\/]", text)[-1]
        return f"{len(text)} {text[:ENDS]} {text[-ENDS:]}"
    if _is(value, int):
        return f"{int.__index__(value):x}"
    if _is(value, float):
        return next(_rounded([float.__float__(value)]))
    return type(value).__name__


def _rounded(numbers: list[float]) -> Iterator[str]:
    # Three digits, and what is next to nothing beside the largest is nothing: machines differ in the last bits. The
    # factor moves round numbers, such as 1.125, away from the border between two roundings.
    finite = [abs(number) for number in numbers if abs(number) < float("inf")]
    nothing = max(finite, default=0.0) * 1e-6
    for number in numbers:
        yield "0" if abs(number) < nothing or number == 0 else f"{number * 1.0001734:.2e}"


def _tensor(value: torch.Tensor, wanted: int) -> Iterator[str]:
    yield f"{value.dtype} {list(value.shape)}"
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    if not plain or value.device.type == "meta" or value.is_quantized or value.dtype.is_complex:
        return  # a DTensor, for one, would exchange data to be read
    try:
        with torch.no_grad():
            flat = torch.tensor(positions(value.numel(), wanted), device=value.device)
            entries = value[torch.unravel_index(flat, value.shape)] if value.ndim else value.reshape(1)
            # on the CPU, because not every device knows doubles
            numbers = (entries.cpu().double() if value.dtype.is_floating_point else entries).tolist()
    except RuntimeError:  # what a dtype or a mode of torch does not do
        return
    yield from _rounded(numbers) if value.dtype.is_floating_point else map(str, numbers)


def _array(value: Any, room: Sequence[int]) -> Iterator[str]:
    yield f"{value.dtype} {list(value.shape)}"
    numpy: Any = sys.modules["numpy"]
    if value.dtype.kind in "biufmMUSO":
        entries = numpy.asarray(value).flat[positions(value.size, room[0])]
        if value.dtype.kind == "f":
            yield from _rounded(entries.astype(float).tolist())
        else:
            entries = entries.view("i8") if value.dtype.kind in "mM" else entries
            for entry in entries.tolist():
                yield from _tokens(entry, room[1:])


def _frame(value: Any, room: Sequence[int]) -> Iterator[str]:
    numpy: Any = sys.modules["numpy"]
    rows = positions(len(value), max(room[0] // 4, 1))
    if not _of(value, "pandas", "Index"):
        yield from _array(numpy.asarray(value.index.take(rows)), room)
    yield from _array(numpy.asarray(value.take(rows)), room)


def _table(value: Any, room: Sequence[int]) -> Iterator[str]:
    types: Any = sys.modules["pyarrow"].types
    rows = positions(value.num_rows, max(room[0] // 4, 1))
    for field in list(value.schema)[:8]:
        yield f"{field.name} {field.type}"
        if types.is_integer(field.type) or types.is_floating(field.type) or types.is_string(field.type):
            column = value.column(field.name)
            for row in rows:
                yield from _tokens(column[row].as_py(), room[1:])
