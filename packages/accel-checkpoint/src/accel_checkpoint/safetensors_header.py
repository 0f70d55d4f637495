"""Reads the header of a safetensors file, which may be larger than memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from accel_checkpoint.bounded_json import parse_json
from accel_checkpoint.errors import CheckpointError

#: the most bytes of a header, by the format
MOST_BYTES = 100_000_000
#: the key in the metadata for names that share the tensor of another name
ALIASES = "accel.aliases"


@final
@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor of a file is: `begin` counts from the beginning of the file. Units: bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a file says of its tensors, also of those whose dtypes torch does not know."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_header(path: Path) -> SafetensorsHeader:
    """The header of a file, of which nothing else is read, nor mapped into memory.

    Raises: CheckpointError if the header is none, or the file is shorter or longer than it says.
    """
    # the safetensors library maps the whole file, which the system refuses if the file is larger than memory
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= MOST_BYTES else b""
        total = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    try:
        head = parse_json(text.decode())
        metadata = head.pop("__metadata__", {})
        tensors = {name: _stored(entry, 8 + length) for name, entry in head.items()}
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or not a safetensors file: it has no header ({error})") from error
    end = max((tensor.begin + tensor.size for tensor in tensors.values()), default=8 + length)
    if end != total:
        raise CheckpointError(
            f"{path} is damaged, or not a safetensors file: its header tells of {end} bytes, it has {total}"
        )
    return SafetensorsHeader(tensors, metadata)


def resolve_aliases(path: Path, names: list[str], metadata: dict[str, str]) -> dict[str, str]:
    """The name under which each tensor is stored. An alias shares the tensor of another name.

    Raises: CheckpointError if the aliases in the metadata are not valid.
    """
    try:
        stored = {name: name for name in names}
        aliases = parse_json(metadata.get(ALIASES, "{}"))
        return stored | {alias: stored[name] for alias, name in aliases.items()}
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
        words = f"its metadata {ALIASES!r} is no mapping of names to names in it: {error}"
        raise CheckpointError(f"{path} is damaged: {words}") from error


def _stored(entry: dict[str, Any], begin_of_numbers: int) -> StoredTensor:
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = (*shape, begin, end)
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers) or end < begin:
        raise ValueError(f"its entry {entry} is not a tensor")
    if math.prod(shape) and end == begin:
        raise ValueError(f"its entry {entry} has no bytes for its numbers")
    return StoredTensor(dtype, tuple(shape), begin_of_numbers + begin, end - begin)
