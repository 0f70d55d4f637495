"""Convert tensors to bytes and back, and exchange them in few messages."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accel_comm import Transport
from accel_comm.transports import serialization

#: bytes of tensors up to which they are sent with the agreement on them, in one message
SMALL = 1 << 17
#: bytes from which on a tensor is sent by itself, uncopied
LARGE = 1 << 16


def travels_small(tensors: Sequence[torch.Tensor], room: int = SMALL) -> bool:
    """Return whether tensors are small enough, and on the CPU, to be sent together with the agreement on them.

    Args:
        tensors: The tensors to send.
        room: Bytes that they may have together.
    """
    total = 0
    for tensor in tensors:
        total += tensor.nbytes
        if total > room or tensor.device.type != "cpu":
            return False
    return True


def to_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the bytes of CPU tensors, one after the other."""
    return b"".join([_bytes(tensor) for tensor in tensors])


def _bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def from_bytes(content: bytes, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new tensor on the CPU with the given bytes.

    Args:
        content: All bytes of the tensor, in row-major order.
        shape: Sizes of the tensor.
        dtype: Dtype of the tensor.
    """
    if not content:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(content), dtype=dtype).view(tuple(shape))


def to_tensors(content: bytes, looks: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[torch.Tensor]:
    """Return the tensors whose bytes `to_bytes` has joined.

    Args:
        content: The joined bytes.
        looks: Shape and dtype of each tensor.
    """
    start, tensors = 0, []
    for shape, dtype in looks:
        end = start + math.prod(shape) * dtype.itemsize
        tensors.append(from_bytes(content[start:end], shape, dtype))
        start = end
    return tensors


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of tensors of one device as one tensor, without a copy if there is one contiguous tensor."""
    return _joined([_without_gaps(tensor.detach().reshape(-1)).view(torch.uint8) for tensor in tensors])


def packed_object(value: object) -> bytes:
    """Return a pickled object, or a pickled reason why the object cannot be pickled.

    `unpacked_objects` raises for the reason.
    """
    try:
        return serialization.pack((True, value))
    except Exception as error:  # noqa: BLE001 - pickling runs code of the user's, and all ranks are to hear of it
        return serialization.pack((False, f"{type(error).__name__}: {error}"))


def unpacked_objects(operation: str, sent: Sequence[bytes]) -> list[Any]:
    """Return the objects of all ranks.

    Args:
        operation: Name of the operation, for error messages.
        sent: What `packed_object` has returned on each rank.

    Raises:
        TypeError: An object could not be pickled on its rank.
    """
    values = [serialization.unpack(content) for content in sent]
    failed = "".join(f"\n  rank {rank}: {value}" for rank, (fine, value) in enumerate(values) if not fine)
    if failed:
        raise TypeError(f"{operation} sends objects pickled, and this cannot be:{failed}")
    return [value for _, value in values]


def exchange_objects(operation: str, value: object, transport: Transport) -> list[Any]:
    """Send an object to every rank, and return those of all ranks in rank order.

    Args:
        operation: Name of the operation, for error messages.
        value: The object of this rank.
        transport: Transport of the ranks that take part.

    Raises:
        TypeError: An object cannot be pickled; every rank raises.

    Collective:
        Every rank of the group must call.
    """
    return unpacked_objects(operation, transport.exchange(operation, packed_object(value)))


def in_groups(tensors: Sequence[torch.Tensor], exchange: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Call `exchange` once for each large tensor, and once for all others of a device and dtype.

    Args:
        tensors: Tensors of equal shapes and dtypes on every rank.
        exchange: Function of a flat tensor that returns one of the same length.

    Returns:
        The results, in the shapes of the tensors. Those of one call are views of one tensor. Empty tensors are copied
        and not exchanged.

    Collective:
        As `exchange`.
    """
    results = [tensor if tensor.numel() else tensor.detach().clone() for tensor in tensors]
    for places in _groups(tensors).values():
        group = [tensors[place] for place in places]
        parts = torch.split(exchange(_flat(group)), [tensor.numel() for tensor in group])
        for place, tensor, part in zip(places, group, parts, strict=True):
            results[place] = part.view(tensor.shape)
    return results


def _groups(tensors: Sequence[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype, int], list[int]]:
    """Return the positions of tensors that are not empty, by device and dtype, and a large one alone."""
    groups: dict[tuple[torch.device, torch.dtype, int], list[int]] = {}
    for place, tensor in enumerate(tensors):
        count = tensor.nbytes
        if count:
            groups.setdefault((tensor.device, tensor.dtype, place if count >= LARGE else -1), []).append(place)
    return groups


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the values of tensors of one dtype, one after the other, in memory without gaps."""
    return _without_gaps(_joined([tensor.reshape(-1) for tensor in tensors]).detach())


def _without_gaps(flat: torch.Tensor) -> torch.Tensor:
    # a single value counts as contiguous whatever its stride is, and then has no view as bytes
    return flat if flat.stride() == (1,) else flat.clone(memory_format=torch.contiguous_format)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
