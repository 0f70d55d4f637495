"""Reads the header of a safetensors file, which may be larger than memory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from accel_checkpoint import CheckpointError

#: the most bytes of a header, by the format
MOST_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file. Units: bytes."""

    count: int
    size: int
    floating: bool


def stored_tensors(path: Path) -> dict[str, Stored]:
    """Every tensor of the file by its name, also of dtypes that torch does not know.

    Raises: CheckpointError if the header is none, or the file is shorter or longer than it says.
    """
    # safetensors maps the whole file, which the system refuses if the file is larger than memory
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= MOST_BYTES else b""
        total = path.stat().st_size - 8 - length
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    try:
        head = json.loads(text)
        entries = {name: entry for name, entry in head.items() if name != "__metadata__"}
        tensors = {name: _stored(entry) for name, entry in entries.items()}
        ends = [entry["data_offsets"][1] for entry in entries.values()]
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: it has no header ({error})") from error
    if max(ends, default=0) != total:
        raise CheckpointError(f"{path} is damaged: its header tells of {max(ends, default=0)} bytes, it has {total}")
    return tensors


def _stored(entry: dict[str, object]) -> Stored:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(f"{entry} is no tensor")
    begin, end = offsets
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)) or end < begin:
        raise ValueError(f"{entry} is no tensor")
    return Stored(math.prod(shape), end - begin, dtype.startswith(("F", "BF")))
