"""A safetensors file of which each process reads what it holds, block by block, without mapping the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import final

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.pieces import Box, box_of, held_part, whole_box
from accel_checkpoint.safetensors_header import StoredTensor, read_header, resolve_aliases
from accel_checkpoint.tensor_file import NAMES, view_bytes

#: bytes that are read at a time, if they are converted, or go to a device
BLOCK = 1 << 24

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


@final
class WeightFile:
    """The tensors of a file. Mapped files count as memory of a process that may have little; blocks do not stay.

    Raises: CheckpointError if the file is damaged, or has a dtype that is not known.
    """

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self._path = path
        self._stored = {
            name: header.tensors[stored]
            for name, stored in resolve_aliases(path, list(header.tensors), header.metadata).items()
        }
        for name, tensor in header.tensors.items():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(f"{path}: {name} has the dtype {tensor.dtype}, which is not known here")
            count = math.prod(tensor.shape)
            if count * _DTYPES[tensor.dtype].itemsize != tensor.size:
                raise CheckpointError(
                    f"{path} is damaged, or not a safetensors file: {name} has {tensor.size} bytes for"
                    f" {list(tensor.shape)}"
                )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor by its name, with the names that share the tensor of another name."""
        return {name: stored.shape for name, stored in self._stored.items()}

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Reads what this process holds of the tensors that the file has, and converts it to their dtypes.

        Raises: CheckpointError if the file cannot be read to its end.
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                for name, stored in self._stored.items():
                    if name in tensors and 0 not in stored.shape:
                        self._read(file, stored, tensors[name])
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from error

    def _read(self, file: FileIO, stored: StoredTensor, tensor: torch.Tensor) -> None:
        held, box, shape = held_part(tensor), box_of(tensor), stored.shape
        if not shape:
            held, box, shape = held.view(1), Box((0,), (1,)), (1,)
        if not box.numel:
            return
        dtype, row_bytes = _DTYPES[stored.dtype], stored.size // shape[0]
        first, rows = stored.begin + box.offset[0] * row_bytes, box.shape[0]
        whole_rows = box.shape[1:] == shape[1:]
        if whole_rows and held.dtype is dtype and held.device.type == "cpu" and _is_plain(held):
            self._read_bytes(file, first, held)
            return
        step = min(max(BLOCK // row_bytes, 1), rows)
        block = torch.empty((step, *shape[1:]), dtype=dtype, device="cpu")
        columns = tuple(slice(start, start + size) for start, size in zip(box.offset[1:], box.shape[1:], strict=True))
        for row in range(0, rows, step):
            read = block[: min(step, rows - row)]
            self._read_bytes(file, first + row * row_bytes, read)
            held[row : row + len(read)].copy_(read[(slice(None), *columns)])

    def _read_bytes(self, file: FileIO, begin: int, target: torch.Tensor) -> None:
        file.seek(begin)
        space, filled = view_bytes(target), 0
        while filled < len(space):
            count = file.readinto(space[filled:])
            if not count:
                raise CheckpointError(f"{self._path} became shorter while it was read")
            filled += count


def fill_from_whole(tensors: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    """Copies what this process holds of the tensors from whole weights of their names."""
    for name, whole in weights.items():
        if name in tensors:
            held_part(tensors[name]).copy_(box_of(tensors[name]).of(whole, whole_box(tuple(whole.shape))))


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
