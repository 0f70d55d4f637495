"""Tensors in a safetensors file, written in one pass that also hashes, and read after they were checked."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.pages import in_large_pages

#: bytes that are written and hashed at a time
PIECE = 1 << 24

#: the names that the format has for dtypes
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
    torch.complex64: "C64",
}


def refused(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors that cannot be in such a file, each with its reason."""
    return [f"{name}: {why}" for name, tensor in tensors.items() if (why := _why_refused(name, tensor)) is not None]


def _why_refused(name: str, tensor: torch.Tensor) -> str | None:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return f"a tensor that is not plain ({tensor.layout}, {tensor.device})"
    if is_traceable_wrapper_subclass(tensor):
        return f"a tensor of the class {type(tensor).__name__}"
    if tensor.dtype not in NAMES:
        return f"the dtype {tensor.dtype}"
    if name == "__metadata__" or any("\ud800" <= one <= "\udfff" for one in name):
        return "a name that the format cannot have"
    return None


def pieces(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Iterator[memoryview]:
    """The content of the file, piece by piece; tensors on the CPU are not copied.

    The header is filled up so that numbers begin at a multiple of 8 bytes.
    """
    # wide numbers first, so that each begins where a processor wants it
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    head: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
        head[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in order:
        if tensors[name].numel():
            whole = tensors[name].detach().to("cpu").resolve_conj().resolve_neg().contiguous()
            numbers = content(whole)
            for start in range(0, len(numbers), PIECE):
                yield numbers[start : start + PIECE]
            del numbers


def content(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the CPU, which must outlive them; what is written there is in the tensor."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


_open: Any = partial(safe_open, framework="pt", device="cpu")  # its methods have no types


class TensorFile:
    """The tensors of a safetensors file, read one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._reader = _open(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from error
        reader = self._reader
        self.names: list[str] = list(reader.keys())
        self.metadata: dict[str, str] = reader.metadata() or {}

    def __getitem__(self, name: str) -> torch.Tensor:
        try:
            found: torch.Tensor = self._reader.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self._path} has no tensor {name}: {error}") from error
        return found

    def allocate(self) -> dict[str, torch.Tensor]:
        """A tensor without content for each one of the file, in the order in which they are stored."""
        about = ((name, self.about(name)) for name in self._reader.offset_keys())
        return {name: in_large_pages(torch.empty(shape, dtype=dtype)) for name, (shape, dtype) in about}

    def about(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """The shape and dtype of a tensor, which is not read for it."""
        try:
            found = self._reader.get_slice(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self._path} has no tensor {name}: {error}") from error
        kind = found.get_dtype()
        if kind not in _DTYPES:
            raise CheckpointError(f"{self._path}: {name} has the dtype {kind}, which is not known here")
        return tuple(found.get_shape()), _DTYPES[kind]


_DTYPES = {name: dtype for dtype, name in NAMES.items()}
