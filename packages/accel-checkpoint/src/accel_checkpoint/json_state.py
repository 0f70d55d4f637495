"""Encode nested Python values as JSON with tensors beside it, which run no code when they are decoded."""

from __future__ import annotations

import base64
import importlib
import math
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.pieces import is_distributed
from accel_checkpoint.tensor_file import find_unsupported, view_bytes

#: the deepest nesting of values, and the most bits of a whole number: Python reads no longer ones from text
DEEPEST, LONGEST_BITS = 64, 13_000

Tensors = dict[str, torch.Tensor]

#: the containers and bytes that have a tag, by their tags
_SEQUENCES: dict[str, Any] = {"$tuple": tuple, "$size": torch.Size}
_MAPPINGS: dict[str, Any] = {"$map": dict, "$ordered": OrderedDict, "$counter": Counter}
_BYTES: dict[str, Any] = {"$bytes": bytes, "$bytearray": bytearray}
_CONTAINERS = (list, *_SEQUENCES.values(), *_MAPPINGS.values())
_TAGS = {kind: tag for tag, kind in (_SEQUENCES | _MAPPINGS | _BYTES).items()}


def encode(value: Any, tensors: Tensors | None = None) -> Any:
    """Return a value as JSON.

    Numbers, text, bytes, None, lists, tuples, dictionaries, Counter, OrderedDict, torch.Size, dtypes, devices, complex
    numbers, NumPy arrays and numbers, and plain tensors come back from `decode` as they were. Distributed tensors go
    into `tensors` too. The caller writes the part that this process holds.

    Args:
        value: The value.
        tensors: Dictionary that gets each tensor under its path. By default tensors go into the JSON as text.

    Raises:
        CheckpointError: The value holds values of other types. The message names their paths.
    """
    encoder = _Encoder(tensors)
    encoded = encoder.value(value, "")
    if encoder.refused:
        raise CheckpointError(
            "a checkpoint holds numbers, text, lists, dictionaries and tensors, and no pickle; found "
            + "; ".join(encoder.refused)
        )
    return encoded


def decode(encoded: Any, tensor: Callable[[str], torch.Tensor] | None = None) -> Any:
    """Return the value that `encode` was given.

    Args:
        encoded: Result of `encode`.
        tensor: Function that returns the tensor of a path. It is not needed if `encode` got no dictionary.

    Raises:
        CheckpointError: It is JSON that `encode` does not write.
    """
    try:
        return _decode(encoded, tensor)
    except CheckpointError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError, SyntaxError) as error:
        raise CheckpointError(f"the state is damaged: {type(error).__name__}: {error}") from error


class _Encoder:
    def __init__(self, tensors: Tensors | None) -> None:
        self.tensors = tensors
        self.refused: list[str] = []
        #: each tensor so far, with its name: a tensor that comes twice is stored once
        self._seen: dict[int, tuple[str, torch.Tensor]] = {}
        #: the containers of the value, from the outermost to the innermost
        self._open: set[int] = set()

    def value(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if value.bit_length() < LONGEST_BITS else self.refuse(f"{path}: a number of too many digits")
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind in _CONTAINERS:
            if len(self._open) > DEEPEST or id(value) in self._open:
                return self.refuse(f"{path}: nested deeper than {DEEPEST}, or in itself")
            self._open.add(id(value))
            try:
                if kind in _MAPPINGS.values():
                    return self.mapping(value, kind, path)
                items = [self.value(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
                return items if kind is list else {_TAGS[kind]: items}
            finally:
                self._open.discard(id(value))
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if kind is complex:
            return {"$complex": [self.value(value.real, path), self.value(value.imag, path)]}
        if kind in _BYTES.values():
            return {_TAGS[kind]: base64.b64encode(value).decode()}
        if kind is torch.dtype:
            return {"$dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"$device": str(value)}
        return self.of_numpy(value, path)

    def mapping(self, value: Mapping[Any, Any], kind: type, path: str) -> Any:
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.value(entry, f"{path}.{key}") for key, entry in value.items()}
        return {
            _TAGS[kind]: [
                [self.value(key, f"{path}.key"), self.value(entry, f"{path}.{key}")] for key, entry in value.items()
            ]
        }

    def tensor(self, value: torch.Tensor, path: str) -> Any:
        stored_beside = self.tensors is not None and is_distributed(value)
        if not stored_beside and type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return self.refuse(f"{path}: a tensor of the class {type(value).__name__}")
        plain = value.detach()
        if plain.is_complex() and plain.layout == torch.strided and not plain.is_meta:
            # safetensors has no double complex numbers
            encoded = self.tensor(torch.view_as_real(plain.resolve_conj().resolve_neg()), path)
            return encoded if encoded is None else {**encoded, "as": _name(value.dtype)}
        if plain.is_nested or plain.layout != torch.strided or plain.is_quantized or plain.is_meta:
            return self.refuse(f"{path}: a tensor that is not plain ({plain.layout}, {plain.device})")
        if self.tensors is None:
            numbers = view_bytes(whole := plain.cpu().resolve_neg().contiguous())
            return {"$inline": [_name(whole.dtype), list(whole.shape), base64.b64encode(numbers).decode()]}
        name, number = path.removeprefix(".") or "tensor", 1
        while name in self.tensors:
            number += 1
            name = f"{path.removeprefix('.')}~{number}"
        if reasons := find_unsupported({name: plain}):
            return self.refuse(reasons[0])
        name, _ = self._seen.setdefault(id(value), (name, value))
        self.tensors[name] = plain
        return {"$tensor": name}

    def of_numpy(self, value: Any, path: str) -> Any:
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            whole = numpy.ascontiguousarray(value)
            flat = torch.from_numpy(whole.reshape(-1).view(numpy.uint8).copy())
            return {"$array": [value.dtype.str, list(value.shape), self.tensor(flat, path)]}
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
            return {"$number": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        return self.refuse(f"{path or 'the value'}: a {type(value).__module__}.{type(value).__qualname__}")

    def refuse(self, what: str) -> None:
        self.refused.append(what.removeprefix("."))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"the state is damaged: {name!r} is not a dtype")
    return dtype


def _decode(value: Any, tensor: Callable[[str], torch.Tensor] | None) -> Any:
    if isinstance(value, list):
        return [_decode(entry, tensor) for entry in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: _decode(entry, tensor) for key, entry in value.items()}
    content, inner = value[tag], partial(_decode, tensor=tensor)
    if tag == "$inline" or (tag == "$tensor" and tensor is not None):
        stored = tensor(content) if tag == "$tensor" and tensor is not None else _inline(*content)
        return torch.view_as_complex(stored).to(_dtype(value["as"])) if "as" in value else stored
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](map(inner, content))
    if tag in _MAPPINGS:
        return _MAPPINGS[tag]({inner(key): inner(entry) for key, entry in content})
    if tag == "$float":
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[content]
    if tag == "$complex":
        return complex(*map(inner, content))
    if tag in _BYTES:
        return _BYTES[tag](base64.b64decode(content, validate=True))
    if tag == "$dtype":
        return _dtype(content)
    if tag == "$device":
        return torch.device(content)
    if tag in ("$array", "$number"):
        return _of_numpy(tag, content, inner)
    raise CheckpointError(f"the state is damaged, or of a newer version: {tag!r} means nothing here")


def _inline(dtype: str, shape: list[int], text: str) -> torch.Tensor:
    numbers = bytearray(base64.b64decode(text, validate=True))
    if not numbers:
        return torch.empty(0, dtype=_dtype(dtype), device="cpu").reshape(shape)
    return torch.frombuffer(numbers, dtype=torch.uint8).view(_dtype(dtype)).view(shape)


def _of_numpy(tag: str, content: Any, inner: Callable[[Any], Any]) -> Any:
    numpy: Any = importlib.import_module("numpy")  # it was there when this was encoded
    if not re.fullmatch(r"[<>|=][biufc]\d{1,2}", content[0]):
        raise CheckpointError(f"the state is damaged: {content[0]!r} is not a number")
    kind = numpy.dtype(content[0])
    if tag == "$number":
        return numpy.frombuffer(base64.b64decode(content[1], validate=True), dtype=kind)[0]
    flat = inner(content[2])
    if flat.is_meta:  # of an outline
        return numpy.broadcast_to(numpy.zeros((), dtype=kind), content[1])
    return flat.contiguous().numpy().view(kind).reshape(content[1]).copy()
