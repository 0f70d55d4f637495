"""Read what each process holds of the tensors of a safetensors file, block by block, without mapping the file."""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from pathlib import Path

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.memory.pinned_memory import is_plain
from accel_checkpoint.pieces import Box, blocks_of
from accel_checkpoint.safetensors_header import StoredTensor
from accel_checkpoint.tensor_file import DTYPES, read_known_header, view_bytes

#: bytes that are read at a time, if they are converted, or go to a device
BLOCK = 1 << 24


def fill_by_blocks(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Read what this process holds of the tensors that a file has, and convert it to their dtypes.

    A mapped file would count as memory of a process that may have little. Blocks do not stay.

    Raises:
        CheckpointError: The file is damaged, or cannot be read to its end.
    """
    header = read_known_header(path)
    try:
        with path.open("rb", buffering=0) as file:
            for name, stored in header.stored_names().items():
                if name in tensors and 0 not in header.tensors[stored].shape:
                    for box, held in blocks_of(tensors[name]):
                        _read(file, header.tensors[stored], box, held)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _read(file: FileIO, stored: StoredTensor, box: Box, held: torch.Tensor) -> None:
    shape = stored.shape
    if not shape:
        held, box, shape = held.view(1), Box((0,), (1,)), (1,)
    if not box.numel:
        return
    dtype, row_bytes = DTYPES[stored.dtype], stored.size // shape[0]
    first, rows = stored.begin + box.offset[0] * row_bytes, box.shape[0]
    whole_rows = box.shape[1:] == shape[1:]
    if whole_rows and held.dtype is dtype and held.device.type == "cpu" and is_plain(held):
        _read_bytes(file, first, held)
        return
    step = min(max(BLOCK // row_bytes, 1), rows)
    block = torch.empty((step, *shape[1:]), dtype=dtype, device="cpu")
    columns = tuple(slice(start, start + size) for start, size in zip(box.offset[1:], box.shape[1:], strict=True))
    for row in range(0, rows, step):
        read = block[: min(step, rows - row)]
        _read_bytes(file, first + row * row_bytes, read)
        held[row : row + len(read)].copy_(read[(slice(None), *columns)])


def _read_bytes(file: FileIO, begin: int, target: torch.Tensor) -> None:
    file.seek(begin)
    space, filled = view_bytes(target), 0
    while filled < len(space):
        count = file.readinto(space[filled:])
        if not count:
            raise CheckpointError(f"{file.name} became shorter while it was read")
        filled += count
