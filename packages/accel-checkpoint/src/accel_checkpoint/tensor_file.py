"""Safetensors files: serializes tensors in one pass, and reads them one by one."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.memory.huge_pages import advise_huge_pages
from accel_checkpoint.memory.pinned_memory import staged, staged_pieces
from accel_checkpoint.pieces import held_part, is_distributed
from accel_checkpoint.safetensors_header import resolve_aliases

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


def find_unsupported(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The name of each tensor that a safetensors file cannot hold, with the reason; of distributed ones the part."""
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
    """The content of a safetensors file, piece by piece.

    Contiguous tensors on the CPU are not copied. Those on GPUs pass through pinned memory of one piece, so a piece is
    valid until the next is asked for. Others are copied to the CPU one at a time. Spaces fill the header, so that the
    numbers begin at a multiple of 64 bytes, as torch's own do: a mapped file needs no copy of them. `rows` gathers
    tensors that are divided over processes.

    Raises: CheckpointError that names each tensor that the format cannot hold.
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
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    filled = [tensors[name] for name in order if tensors[name].numel()]
    kinds = [rows if is_distributed(tensor) else None for tensor in filled]
    by_pinned = [kind is None and pinned for kind, pinned in zip(kinds, staged(filled), strict=True)]
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
    """The memory of a contiguous tensor on the CPU. The caller keeps the tensor alive as long as the view."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def is_utf8(text: str) -> bool:
    """Return whether a text has UTF-8, which a path with other bytes has not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _numbered(path: Path) -> Iterator[str]:
    """A path of an open file that is UTF-8, as the safetensors library asks for, whatever its own path is."""
    with path.open("rb") as file:
        yield f"/dev/fd/{file.fileno()}"


class TensorFile:
    """A safetensors file, whose tensors are read one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with nullcontext(path) if is_utf8(str(path)) else _numbered(path) as named:
                self._reader = cast(Any, safe_open(named, framework="pt", device="cpu"))  # its methods have no types
        except (SafetensorError, OSError, RuntimeError) as error:  # the last of torch, if the file goes meanwhile
            raise CheckpointError(f"{path} is damaged, or not a safetensors file: {error}") from error
        self.names: list[str] = list(self._reader.keys())
        self.metadata: dict[str, str] = self._reader.metadata() or {}

    def __getitem__(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._reader.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.path} has no tensor {name}: {error}") from error
        return tensor

    def stored_names(self) -> dict[str, str]:
        """The name under which each tensor is stored. An alias shares the tensor of another name.

        Raises: CheckpointError if the aliases in the metadata are not valid.
        """
        return resolve_aliases(self.path, self.names, self.metadata)

    def allocate(self) -> dict[str, torch.Tensor]:
        """An empty tensor for each tensor of the file, in the order of the file."""
        specs = ((name, self.shape_and_dtype(name)) for name in self._reader.offset_keys())
        return {
            name: advise_huge_pages(torch.empty(shape, dtype=dtype, device="cpu")) for name, (shape, dtype) in specs
        }

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of a tensor, whose numbers are not read."""
        try:
            stored = self._reader.get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.path} has no tensor {name}: {error}") from error
        dtype = stored.get_dtype()
        if dtype not in _DTYPES:
            raise CheckpointError(f"{self.path}: {name} has the dtype {dtype}, which is not known here")
        return tuple(stored.get_shape()), _DTYPES[dtype]


_DTYPES = {name: dtype for dtype, name in NAMES.items()}
