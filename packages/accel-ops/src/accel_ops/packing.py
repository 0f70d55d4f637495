"""Tensors as bytes, and bytes as tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accel_state import Transport
from accel_state.transports import serialization

#: bytes of tensors up to which they travel with the agreement on them, in one message
SMALL = 1 << 17
#: bytes from which on a tensor travels by itself, uncopied
LARGE = 1 << 16


def travels_small(tensors: Sequence[torch.Tensor], room: int = SMALL) -> bool:
    """Whether tensors are few bytes, and on the CPU, where the agreement travels."""
    total = 0
    for tensor in tensors:
        total += tensor.nbytes
        if total > room or tensor.device.type != "cpu":
            return False
    return True


def to_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    """The numbers of CPU tensors, one after the other."""
    return b"".join([_bytes(tensor) for tensor in tensors])


def _bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def from_bytes(content: bytes, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor with these numbers, in memory of its own."""
    if not content:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(content), dtype=dtype).view(tuple(shape))


def to_tensors(content: bytes, looks: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[torch.Tensor]:
    """The tensors of these shapes and dtypes that `to_bytes` was given."""
    start, tensors = 0, []
    for shape, dtype in looks:
        end = start + math.prod(shape) * dtype.itemsize
        tensors.append(from_bytes(content[start:end], shape, dtype))
        start = end
    return tensors


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of tensors of one device, one after the other, as bytes; one contiguous tensor is not copied."""
    return _joined([_without_gaps(tensor.detach().reshape(-1)).view(torch.uint8) for tensor in tensors])


def packed_object(value: object) -> bytes:
    """An object as bytes, or why it cannot be one."""
    try:
        return serialization.pack((True, value))
    except Exception as error:  # noqa: BLE001 - pickling runs code of the user's, and all ranks are to hear of it
        return serialization.pack((False, f"{type(error).__name__}: {error}"))


def unpacked_objects(operation: str, sent: Sequence[bytes]) -> list[Any]:
    """The objects of all ranks.

    Raises: TypeError, on every rank, if an object cannot be pickled.
    """
    values = [serialization.unpack(content) for content in sent]
    failed = "".join(f"\n  rank {rank}: {value}" for rank, (fine, value) in enumerate(values) if not fine)
    if failed:
        raise TypeError(f"{operation} sends objects pickled, and this cannot be:{failed}")
    return [value for _, value in values]


def exchange_objects(operation: str, value: object, transport: Transport) -> list[Any]:
    """The objects of all ranks.

    Raises: TypeError, on every rank, if an object cannot be pickled.
    Collective: every rank of the group must call.
    """
    return unpacked_objects(operation, transport.exchange(operation, packed_object(value)))


def in_groups(tensors: Sequence[torch.Tensor], exchange: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """The results of `exchange`: one call for each large tensor, and one for all others of a device and dtype.

    Tensors of one call come back as views of one tensor; tensors without numbers are not exchanged.
    Collective: as `exchange`, with tensors of equal shapes and dtypes on every rank.
    """
    results = [tensor if tensor.numel() else tensor.detach().clone() for tensor in tensors]
    for places in _groups(tensors).values():
        group = [tensors[place] for place in places]
        parts = torch.split(exchange(_flat(group)), [tensor.numel() for tensor in group])
        for place, tensor, part in zip(places, group, parts, strict=True):
            results[place] = part.view(tensor.shape)
    return results


def all_gathered(tensors: Sequence[torch.Tensor], transport: Transport) -> list[torch.Tensor]:
    """The tensors of all ranks, joined along dim 0: a message for each large tensor, and one for all others.

    Collective: every rank of the group must call, with tensors of equal shapes and dtypes.
    """
    size = transport.size
    joined = [
        tensor if tensor.numel() else tensor.new_empty((size * tensor.shape[0], *tensor.shape[1:]))
        for tensor in tensors
    ]
    messages: dict[object, list[list[int]]] = {}
    for (device, _, alone), places in _groups(tensors).items():
        messages.setdefault((device, alone), []).append(places)
    for columns in messages.values():
        sent = [_flat([tensors[place] for place in places]).view(torch.uint8) for places in columns]
        rows = transport.all_gather(_joined(sent)).view(size, -1)
        for places, column in zip(columns, torch.split(rows, [len(content) for content in sent], dim=1), strict=True):
            group = [tensors[place] for place in places]
            whole = column.contiguous().view(group[0].dtype)
            # copies, so that no part keeps the memory of all
            lengths = [tensor.numel() for tensor in group]
            parts: Any = [whole]
            if len(group) > 1:
                # torch's stub has no result
                parts = torch.split_with_sizes_copy(whole, lengths, dim=1)  # type: ignore[func-returns-value]
            for place, tensor, part in zip(places, group, parts, strict=True):
                joined[place] = part.view(-1, *tensor.shape[1:])
    return joined


def _groups(tensors: Sequence[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype, int], list[int]]:
    """The places of tensors with numbers, by device and dtype; a large tensor is alone."""
    groups: dict[tuple[torch.device, torch.dtype, int], list[int]] = {}
    for place, tensor in enumerate(tensors):
        count = tensor.nbytes
        if count:
            groups.setdefault((tensor.device, tensor.dtype, place if count >= LARGE else -1), []).append(place)
    return groups


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of tensors of one dtype, one after the other, in memory without gaps."""
    return _without_gaps(_joined([tensor.reshape(-1) for tensor in tensors]).detach())


def _without_gaps(flat: torch.Tensor) -> torch.Tensor:
    # a single number counts as contiguous whatever its stride is, and then has no view as bytes
    return flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
