"""Read the header of a safetensors file, which may be larger than memory."""

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
    """The type and place of a tensor in a file.

    Args:
        dtype: Name of the dtype in the format.
        shape: Shape of the tensor.
        begin: Position of its first byte in the file.
        size: Number of its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


@final
@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The description of the tensors of a file, also of those whose dtypes torch does not know.

    Args:
        path: The file.
        tensors: The tensors by the names under which they are stored.
        metadata: Text by its key.
    """

    path: Path
    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]

    def stored_names(self) -> dict[str, str]:
        """Return the name under which each tensor is stored, also for the names that share the tensor of another.

        Raises:
            CheckpointError: The aliases in the metadata are not valid.
        """
        try:
            aliases = parse_json(self.metadata.get(ALIASES, "{}"))
            names = {name: name for name in self.tensors}
            return names | {alias: names[name] for alias, name in aliases.items()}
        except (ValueError, AttributeError, TypeError, LookupError, RecursionError) as error:
            words = f"its metadata {ALIASES!r} is no mapping of names to names in it: {error}"
            raise CheckpointError(f"{self.path} is damaged: {words}") from error


def read_header(path: Path) -> SafetensorsHeader:
    """Return the header of a file, of which nothing else is read, nor mapped into memory.

    Raises:
        CheckpointError: The header is none, tensors overlap or leave a hole, or the file is shorter or longer than it
            says.
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
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.size)):
        if tensor.begin != end:
            raise CheckpointError(f"{path} is damaged, or not a safetensors file: its tensors overlap or leave a hole")
        end += tensor.size
    if end != total:
        raise CheckpointError(
            f"{path} is damaged, or not a safetensors file: its header tells of {end} bytes, it has {total}"
        )
    return SafetensorsHeader(path, tensors, metadata)


def _stored(entry: dict[str, Any], begin_of_numbers: int) -> StoredTensor:
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = (*shape, begin, end)
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers) or end < begin:
        raise ValueError(f"its entry {entry} is not a tensor")
    if math.prod(shape) and end == begin:
        raise ValueError(f"its entry {entry} has no bytes for its numbers")
    return StoredTensor(dtype, tuple(shape), begin_of_numbers + begin, end - begin)
