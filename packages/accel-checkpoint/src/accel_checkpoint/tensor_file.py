"""Serialize tensors as safetensors in one pass, and read them one by one."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.bounded_json import compact_json
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.memory.huge_pages import advise_huge_pages
from accel_checkpoint.memory.pinned_memory import pass_through_pinned, staged_pieces
from accel_checkpoint.pieces import held_part, is_distributed
from accel_checkpoint.safetensors_header import SafetensorsHeader, read_header

#: bytes of a piece, which are written and hashed at a time
PIECE = 1 << 24

#: bytes: torch puts numbers on the CPU at multiples of it, and so do files
ALIGNMENT = 64

#: the names of dtypes in the format
NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def find_unsupported(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the name of each tensor that a safetensors file cannot hold, with the reason.

    Of a distributed tensor the part that this process holds counts.
    """
    reasons = {name: _unsupported(name, held_part(tensor)) for name, tensor in tensors.items()}
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]


def _unsupported(name: str, tensor: torch.Tensor) -> str | None:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return f"a tensor that is not plain ({tensor.layout}, {tensor.device})"
    if is_traceable_wrapper_subclass(tensor):
        return f"a tensor of the class {type(tensor).__name__}"
    if tensor.dtype not in NAMES:
        return f"the dtype {tensor.dtype}"
    if name == "__metadata__" or not is_utf8(name):
        return "a name that the format cannot have"
    return None


#: the numbers of a tensor that is divided over processes, some rows after the other
Rows = Callable[[torch.Tensor], Iterator[torch.Tensor]]


def serialize(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, rows: Rows | None = None
) -> Iterator[memoryview]:
    """Yield the content of a safetensors file, piece by piece.

    Contiguous tensors on the CPU are not copied. Those on GPUs pass through pinned memory of one piece, so a piece is
    valid until the next is asked for. Others are copied to the CPU one at a time. Spaces fill the header, so that the
    values begin at a multiple of 64 bytes, as torch's own do: a mapped file needs no copy of them.

    Args:
        tensors: Tensors by name.
        metadata: Text for the header.
        rows: Function that gathers a tensor which is divided over processes, some rows after the other.

    Raises:
        CheckpointError: The format cannot hold a tensor. The message names each.
    """
    unsupported = find_unsupported(tensors)
    if unsupported:
        raise CheckpointError(f"safetensors cannot hold {'; '.join(unsupported)}")
    # those that leave the next aligned first, then wide numbers: each begins at a multiple of its width
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: (sizes[name] % ALIGNMENT > 0, -tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in order:
        begin, end = end, end + sizes[name]
        header[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = compact_json(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    filled = [tensors[name] for name in order if tensors[name].numel()]
    kinds = [rows if is_distributed(tensor) else None for tensor in filled]
    by_pinned = [kind is None and pinned for kind, pinned in zip(kinds, pass_through_pinned(filled), strict=True)]
    groups = itertools.groupby(zip(by_pinned, kinds, filled, strict=True), lambda member: member[:2])
    for (through_pinned, gather), group in groups:
        members = [tensor for _, _, tensor in group]
        if gather is not None:
            for tensor in members:
                for part in gather(tensor):
                    yield view_bytes(part)
        elif through_pinned:
            yield from map(view_bytes, staged_pieces(members, PIECE))
        else:
            for tensor in members:
                yield from _pieces(tensor)


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    tensor = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    numbers = view_bytes(tensor)
    for start in range(0, len(numbers), PIECE):
        yield numbers[start : start + PIECE]


def view_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU. Keep the tensor alive as long as the view."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def is_utf8(text: str) -> bool:
    """Return whether a text has UTF-8, which a path with other bytes has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_known_header(path: Path) -> SafetensorsHeader:
    """Return the header of a file, whose tensors torch can hold.

    Raises:
        CheckpointError: The file is damaged, is no safetensors file, or has a dtype that torch does not know.
    """
    header = read_header(path)
    for name, stored in header.tensors.items():
        if stored.dtype not in DTYPES:
            raise CheckpointError(f"{path}: {name} has the dtype {stored.dtype}, which is not known here")
        if math.prod(stored.shape) * DTYPES[stored.dtype].itemsize != stored.size:
            words = f"{name} has {stored.size} bytes for {list(stored.shape)}"
            raise CheckpointError(f"{path} is damaged, or not a safetensors file: {words}")
    return header


class TensorFile:
    """A safetensors file that is mapped into memory, whose tensors are read one by one.

    Args:
        path: The file. What becomes of the path later changes nothing.

    Raises:
        CheckpointError: The file is damaged, is no safetensors file, or has a dtype that torch does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, read_known_header(path)
        try:
            with path.open("rb") as file:
                # torch opens a path that is UTF-8: this one is, whatever the path of the file is
                size = os.fstat(file.fileno()).st_size
                self._mapped = torch.UntypedStorage.from_file(f"/dev/fd/{file.fileno()}", False, size)
        except (OSError, RuntimeError) as error:  # the last of torch, if the system does not map the file
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        ends = [stored.begin + stored.size for stored in self.header.tensors.values()]
        if max(ends, default=size) != size:
            raise CheckpointError(f"{path} was replaced while it was opened; open it again")

    def __getitem__(self, name: str) -> torch.Tensor:
        shape, dtype = self.shape_and_dtype(name)
        stored = self.header.tensors[name]
        # a slice of the storage, as the values of a tensor may begin anywhere in a file of others
        values = torch.asarray(self._mapped[stored.begin : stored.begin + stored.size], dtype=torch.uint8, device="cpu")
        return values.view(dtype).view(shape)

    def allocate(self) -> dict[str, torch.Tensor]:
        """Return an empty tensor for each tensor of the file, in the order of the file."""
        stored = sorted(self.header.tensors.items(), key=lambda entry: entry[1].begin)
        return {
            name: advise_huge_pages(torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype], device="cpu"))
            for name, tensor in stored
        }

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and dtype of a tensor, whose values are not read.

        Raises:
            CheckpointError: The file has no such tensor.
        """
        stored = self.header.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        return stored.shape, DTYPES[stored.dtype]
