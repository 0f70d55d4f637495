"""Collect the tensors and objects of all ranks on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accel_comm import Transport

from accel_ops.agree import Leaf, ShapeMismatch, Signature, agree, signature, table
from accel_ops.flat import Flat
from accel_ops.packing import (
    LARGE,
    exchange_objects,
    from_bytes,
    packed,
    packed_object,
    to_bytes,
    travels_small,
    unpacked_objects,
)
from accel_ops.whole import flat_whole, whole

Shape = tuple[int, ...]
#: bytes of the integer that has the length of the objects
LENGTH = 8


def gather(data: Any, transport: Transport) -> Any:
    """Join the nested tensors of all ranks along dim 0, in rank order.

    Lists without a tensor in them are joined too. Another object becomes a list with the object of each rank, or None
    if all are None. A sharded tensor (DTensor) is made whole first. A single process gets back `data` itself.

    Args:
        data: Tensors and objects in lists, tuples, named tuples and mappings; lengths along dim 0 may differ between
            ranks.
        transport: Transport of the ranks that take part.

    Shape:
        (n_r, ...) on rank r -> (sum of n_r, ...) on all ranks; () on each -> (ranks,) on all.

    Raises:
        ShapeMismatch: Other dims, dtypes or structures differ between ranks.
        TypeError: A tensor cannot be sent, such as a sparse one, or an object cannot be pickled.

    Collective:
        Every rank of the group must call.
    """
    if transport.size == 1:
        return whole(data, "gather", transport)
    gathered = gather_leaves(data, transport)
    return gathered.flat.rebuilt(gathered.leaves)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The leaves of all ranks, joined.

    Args:
        flat: The data of this rank.
        leaves: The joined leaves.
        lengths: The length of each leaf on each rank, None for a single value.
    """

    flat: Flat
    leaves: list[Any]
    lengths: list[list[int | None]]


def gather_leaves(data: Any, transport: Transport) -> Gathered:
    """Gather data leaf by leaf between several ranks, with the length of each leaf on each rank.

    Collective:
        Every rank of the group must call.
    """
    flat = flat_whole(data, "gather", transport, objects=True)
    tensors, objects = flat.tensors, flat.objects
    small = flat.refusal is None and travels_small(tensors)
    letter = packed_object(objects) if objects else b""
    head = len(letter).to_bytes(LENGTH, "little") + letter
    agreed = agree("gather", flat, transport, head + to_bytes(tensors) if small else head)
    if agreed.signatures is not None:
        _require_only_lengths_differ(agreed.signatures, agreed.sites)
    flat.check()
    if small and agreed.signatures is None and not objects:  # as in most calls, so this path is short
        lengths_alike = [[tensor.shape[0] if tensor.ndim else None] * transport.size for tensor in tensors]
        return Gathered(flat, _from_alike(tensors, agreed.sent), lengths_alike)
    letters, numbers = zip(*map(_opened, agreed.sent), strict=True)
    columns = _columns(tensors, agreed.signatures or [signature(flat)] * transport.size)
    enclosed = small and _all_enclosed(columns, numbers)
    joined = _from_numbers(columns, numbers) if enclosed else _from_messages(columns, transport)
    arrived = zip(joined, columns, strict=True)
    sent_objects = zip(*unpacked_objects("gather", letters), strict=True) if objects else iter(())
    leaves, lengths = list[Any](), list[list[int | None]]()
    for leaf in flat.leaves:
        if isinstance(leaf, torch.Tensor):
            tensor, column = next(arrived)
            leaves.append(tensor)
            lengths.append([shape[0] if shape else None for shape in column.shapes])
        else:
            values = next(sent_objects)
            leaves.append(_joined(values))
            lengths.append([len(value) if isinstance(value, list | tuple) else None for value in values])
    return Gathered(flat, leaves, lengths)


def gather_object(data: Any, transport: Transport) -> Any:
    """Join the lists of all ranks in rank order.

    A single process gets back `data` itself.

    Args:
        data: A list or tuple of objects to pickle; another object counts as a list of one.
        transport: Transport of the ranks that take part.

    Raises:
        TypeError: An object cannot be pickled; every rank raises.

    Collective:
        Every rank of the group must call.
    """
    if transport.size == 1:
        return data
    return items_of(exchange_objects("gather_object", data, transport))


def items_of(values: Sequence[Any]) -> list[Any]:
    """Return the items of lists and tuples, and all other values, in one list."""
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


@dataclass(frozen=True, slots=True)
class _Column:
    """The shapes and sizes in bytes of one tensor on each rank."""

    tensor: torch.Tensor
    shapes: Sequence[Shape]
    sizes: Sequence[int]

    @property
    def whole(self) -> Shape:
        """The shape of the tensors of all ranks, joined."""
        first = self.shapes[0]
        return (sum(shape[0] for shape in self.shapes), *first[1:]) if first else (len(self.shapes),)


def _columns(tensors: Sequence[torch.Tensor], signatures: Sequence[Signature]) -> list[_Column]:
    rows = [[leaf.shape for leaf in leaves if leaf.dtype.startswith("torch.")] for leaves in signatures]
    return [
        _Column(tensor, shapes, [tensor.itemsize * math.prod(shape) for shape in shapes])
        for tensor, shapes in zip(tensors, zip(*rows, strict=True), strict=True)
    ]


def _opened(sent: bytes) -> tuple[bytes, bytes]:
    """Return the objects and the bytes of the tensors that a rank has sent."""
    end = LENGTH + int.from_bytes(sent[:LENGTH], "little")
    return sent[LENGTH:end], sent[end:]


def _from_alike(tensors: Sequence[torch.Tensor], sent: Sequence[bytes]) -> list[torch.Tensor]:
    """Return the joined tensors, which are alike on all ranks and come without objects."""
    start, joined = LENGTH, []
    for tensor in tensors:
        end, shape = start + tensor.nbytes, tensor.shape
        whole = (len(sent) * shape[0], *shape[1:]) if shape else (len(sent),)
        joined.append(from_bytes(b"".join([numbers[start:end] for numbers in sent]), whole, tensor.dtype))
        start = end
    return joined


def _all_enclosed(columns: Sequence[_Column], numbers: Sequence[bytes]) -> bool:
    """Return whether every rank has sent the bytes of its tensors, as a rank with large tensors has sent none."""
    return all(len(sent) == sum(column.sizes[rank] for column in columns) for rank, sent in enumerate(numbers))


def _from_numbers(columns: Sequence[_Column], numbers: Sequence[bytes]) -> list[torch.Tensor]:
    """Return the joined tensors, whose bytes each rank has sent one after the other."""
    cut = zip(columns, _cut(columns, numbers), strict=True)
    return [from_bytes(b"".join(parts), column.whole, column.tensor.dtype) for column, parts in cut]


def _cut(columns: Sequence[_Column], rows: Sequence[Any] | torch.Tensor) -> Iterator[list[Any]]:
    """Yield the part of each column in the row of each rank."""
    starts = [0] * len(rows)
    for column in columns:
        ends = [start + size for start, size in zip(starts, column.sizes, strict=True)]
        yield [row[start:end] for row, start, end in zip(rows, starts, ends, strict=True)]
        starts = ends


def _from_messages(columns: Sequence[_Column], transport: Transport) -> list[torch.Tensor]:
    """Exchange a message for each large tensor and one for the others of a device, and join them (collective)."""
    joined: dict[int, torch.Tensor] = {}
    for places in _groups(columns):
        joined |= zip(places, _from_message([columns[place] for place in places], transport), strict=True)
    return [
        joined[place] if place in joined else column.tensor.new_empty(column.whole)
        for place, column in enumerate(columns)
    ]


def _from_message(columns: Sequence[_Column], transport: Transport) -> list[torch.Tensor]:
    """Exchange the columns in one message, which is freed on return, and join them (collective)."""
    by_rank = [list(sizes) for sizes in zip(*(column.sizes for column in columns), strict=True)]
    message = transport.all_gather(_padded(packed([column.tensor for column in columns]), max(map(sum, by_rank))))
    rows = message.view(transport.size, -1)
    parts: Any = [rows]
    if any(sizes != by_rank[0] for sizes in by_rank):
        parts = map(torch.cat, _cut(columns, rows.unbind()))
    elif len(columns) > 1:  # copies, so that no part keeps the memory of all; torch's stub has no result
        parts = torch.split_with_sizes_copy(rows, by_rank[0], dim=1)  # type: ignore[func-returns-value]
    return [
        part.view(-1).view(column.tensor.dtype).view(column.whole) for column, part in zip(columns, parts, strict=True)
    ]


def _groups(columns: Sequence[_Column]) -> list[list[int]]:
    """Return the positions of columns that share a message, the same on every rank."""
    groups: dict[object, list[int]] = {}
    for place, column in enumerate(columns):
        longest = max(column.sizes)
        if longest:
            groups.setdefault((column.tensor.device, place if longest >= LARGE else -1), []).append(place)
    return list(groups.values())


def _padded(content: torch.Tensor, length: int) -> torch.Tensor:
    return content if len(content) == length else torch.cat([content, content.new_zeros(length - len(content))])


def _joined(values: Sequence[Any]) -> Any:
    """Return the items of lists, a list of other objects, or None if there are none."""
    if all(isinstance(value, list | tuple) for value in values):
        items = items_of(values)
        return tuple(items) if all(isinstance(value, tuple) for value in values) else items
    return None if all(value is None for value in values) else list(values)


def _require_only_lengths_differ(signatures: Sequence[Signature], sites: Sequence[str]) -> None:
    kinds = {tuple((leaf.path, leaf.dtype, leaf.device, _dims_after_first(leaf)) for leaf in row) for row in signatures}
    if len(kinds) > 1:
        alike = {tuple((leaf.path, leaf.dtype, leaf.device, len(leaf.shape)) for leaf in row) for row in signatures}
        advice = (
            "pad the dim that differs first: accelerator.pad_across_processes(data, dim=1)"
            if len(alike) == 1
            else "make them alike on every rank, or send them as objects: gather_object"
        )
        raise ShapeMismatch(
            "gather needs the same structure, dtypes and dims on all ranks (only dim 0 may differ), found"
            f"{table(signatures, sites)}\n{advice}"
        )


def _dims_after_first(leaf: Leaf) -> Shape | None:
    return leaf.shape[1:] if leaf.shape else None
