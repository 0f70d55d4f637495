"""Tensors as bytes, and bytes as tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accel_state.transports import wire

#: bytes of tensors up to which they travel with the agreement on them, in one message
SMALL = 1 << 14
#: bytes from which on a tensor travels by itself, uncopied
LARGE = 1 << 16


def travels_small(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are few bytes, and on the CPU, where the agreement travels."""
    total = 0
    for tensor in tensors:
        total += tensor.nbytes
        if total > SMALL or tensor.device.type != "cpu":
            return False
    return True


def to_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    """The numbers of CPU tensors, one after the other."""
    return b"".join(_bytes(tensor) for tensor in tensors)


def _bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def from_bytes(content: bytes, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor whose numbers these are; it has memory of its own."""
    if not content:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(tuple(shape))


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of tensors of one device, one after the other, as bytes."""
    return torch.cat([as_bytes(tensor) for tensor in tensors])


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as bytes: a view of it where it is contiguous. Some backends know few dtypes."""
    flat = tensor.detach().reshape(-1)
    if flat.stride() != (1,):
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def packed_object(value: object) -> bytes:
    """An object as bytes, or why it cannot be one."""
    try:
        return wire.pack((True, value))
    except Exception as error:  # noqa: BLE001 - pickling runs code of the user's, and all ranks are to hear of it
        return wire.pack((False, f"{type(error).__name__}: {error}"))


def unpacked_objects(operation: str, sent: Sequence[bytes]) -> list[Any]:
    """The objects of all ranks.

    Raises: TypeError, on every rank, where one of them cannot be pickled.
    """
    found = [wire.unpack(one) for one in sent]
    failed = "".join(f"\n  rank {rank}: {value}" for rank, (fine, value) in enumerate(found) if not fine)
    if failed:
        raise TypeError(f"{operation} sends objects pickled, and this cannot be:{failed}")
    return [value for _, value in found]


def groups(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The places of tensors of one device and dtype that may travel in one message; each large one is alone."""
    found: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.numel():
            alone = place if tensor.nbytes >= LARGE else -1
            found.setdefault((tensor.device, tensor.dtype, alone), []).append(place)
    return list(found.values())


def in_groups(
    tensors: Sequence[torch.Tensor],
    flatten: Callable[[torch.Tensor], torch.Tensor],
    exchange: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """What `exchange` makes of tensors: one call for each large one, and one for all others of a device and dtype.

    Those that went together come back as views of one tensor; those without numbers do not go.
    Collective: as `exchange`, with tensors of equal shapes and dtypes on every rank.
    """
    found = [tensor if tensor.numel() else tensor.detach().clone() for tensor in tensors]
    for places in groups(tensors):
        flat = [flatten(tensors[place]) for place in places]
        whole = exchange(flat[0] if len(flat) == 1 else torch.cat(flat))
        for place, part in zip(places, torch.split(whole, [len(one) for one in flat]), strict=True):
            found[place] = part.view(tensors[place].dtype).view(tensors[place].shape)
    return found
