"""Every rank's tensors and objects, on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accel_state import Transport

from accel_ops.agree import Agreed, Leaf, ShapeMismatch, agree, table
from accel_ops.flat import Flat
from accel_ops.packing import (
    LARGE,
    all_gathered,
    as_bytes,
    from_bytes,
    packed,
    packed_object,
    to_bytes,
    travels_small,
    unpacked_objects,
)

Shape = tuple[int, ...]
#: what a rank means that encloses no letter: no objects, and small tensors
NOTHING = packed_object(([], True))
#: bytes of the length of a letter, and where numbers begin that have none before them
LENGTH = 8


def gather(data: Any, transport: Transport) -> Any:
    """Nested tensors of all ranks, joined along dim 0 in rank order; lengths along dim 0 may differ.

    Lists without a tensor in them are joined too; of any other object each rank's comes, in a list. Alone, data comes
    back as it is. Small data is one message, whatever it holds.

    Shape: (n_r, ...) on rank r -> (sum of n_r, ...) on all; () on each -> (ranks,) on all.
    Raises: ShapeMismatch when other dims, dtypes or structures differ; TypeError for a sparse tensor or its like.
    Collective: every rank of the group must call.
    """
    if transport.size == 1:
        return data
    gathered = gather_leaves(data, transport)
    return gathered.flat.rebuilt(gathered.leaves)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The leaves of nested data, of all ranks, and how long each was on each rank; None of a single value."""

    flat: Flat
    leaves: list[Any]
    lengths: list[list[int | None]]


def gather_leaves(data: Any, transport: Transport) -> Gathered:
    """What `gather` puts together among several ranks.

    Collective: every rank of the group must call.
    """
    flat = Flat(data, "gather", objects=True)
    tensors = flat.tensors
    small = flat.refusal is None and travels_small(tensors)
    objects = [leaf for leaf in flat.leaves if not isinstance(leaf, torch.Tensor)]
    letter = packed_object((objects, small)) if objects or not small else b""
    agreed = agree("gather", flat, transport, _enclosed(letter, tensors if small else []))
    if agreed.everyone is not None:
        _require_only_lengths_differ(agreed)
    flat.check()
    if agreed.everyone is None and not objects:
        each = [[shape[0] if shape else None] * transport.size for shape in (one.shape for one in tensors)]
        return Gathered(flat, _of_alike(tensors, agreed.sent) if small else all_gathered(tensors, transport), each)
    letters, numbers = zip(*map(_opened, agreed.sent), strict=True)
    told = unpacked_objects("gather", [one or NOTHING for one in letters]) if any(letters) else [([], True)]
    columns = _columns(tensors, agreed, transport.size)
    in_letters = all(one for _, one in told)
    joined = _from_letters(columns, numbers) if in_letters else _from_messages(columns, transport)
    whole = zip(*(one for one, _ in told), strict=True)
    values, places = iter(joined), iter(columns)
    found, lengths = list[Any](), list[list[int | None]]()
    for leaf in flat.leaves:
        if isinstance(leaf, torch.Tensor):
            found.append(next(values))
            lengths.append([shape[0] if shape else None for shape in next(places).shapes])
        else:
            parts = next(whole)
            found.append(_joined(parts))
            lengths.append([len(one) if isinstance(one, list | tuple) else None for one in parts])
    return Gathered(flat, found, lengths)


def gather_object(data: Any, transport: Transport) -> Any:
    """The lists of all ranks, joined in rank order; what is no list becomes one item.

    Collective: every rank of the group must call.
    """
    if transport.size == 1:
        return data
    parts = unpacked_objects("gather_object", transport.exchange("gather_object", packed_object(data)))
    return [item for part in parts for item in (part if isinstance(part, list | tuple) else [part])]


@dataclass(frozen=True, slots=True)
class _Column:
    """One tensor, and its shape on each rank."""

    tensor: torch.Tensor
    shapes: Sequence[Shape]

    def lengths(self) -> list[int]:
        """Bytes of each rank's."""
        return [self.tensor.dtype.itemsize * math.prod(shape) for shape in self.shapes]

    def joined(self, parts: Sequence[bytes]) -> torch.Tensor:
        """The tensors of all ranks, whose numbers these are."""
        return from_bytes(b"".join(parts), self.whole, self.tensor.dtype)

    @property
    def whole(self) -> Shape:
        """The shape of all of them joined."""
        first = self.shapes[0]
        return (sum(shape[0] for shape in self.shapes), *first[1:]) if first else (len(self.shapes),)


def _columns(tensors: Sequence[torch.Tensor], agreed: Agreed, size: int) -> list[_Column]:
    if agreed.everyone is None:
        return [_Column(tensor, (tuple(tensor.shape),) * size) for tensor in tensors]
    rows = [[leaf.shape for leaf in one if leaf.dtype.startswith("torch.")] for one in agreed.everyone]
    return [_Column(tensor, shapes) for tensor, shapes in zip(tensors, zip(*rows, strict=True), strict=True)]


def _enclosed(letter: bytes, tensors: Sequence[torch.Tensor]) -> bytes:
    return len(letter).to_bytes(LENGTH, "little") + letter + to_bytes(tensors)


def _opened(sent: bytes) -> tuple[bytes, bytes]:
    begin = LENGTH
    end = begin + int.from_bytes(sent[:begin], "little")
    return sent[begin:end], sent[end:]


def _of_alike(tensors: Sequence[torch.Tensor], sent: Sequence[bytes]) -> list[torch.Tensor]:
    """Of small tensors that look the same on all ranks, which is what most calls are about."""
    start, found = LENGTH, []
    for tensor in tensors:
        end, shape = start + tensor.nbytes, tensor.shape
        whole = (len(sent) * shape[0], *shape[1:]) if shape else (len(sent),)
        found.append(from_bytes(b"".join([one[start:end] for one in sent]), whole, tensor.dtype))
        start = end
    return found


def _from_letters(columns: Sequence[_Column], numbers: Sequence[bytes]) -> list[torch.Tensor]:
    """Of tensors whose numbers each rank has sent one after the other."""
    starts, found = [0] * len(numbers), []
    for column in columns:
        ends = [start + length for start, length in zip(starts, column.lengths(), strict=True)]
        found.append(column.joined([one[a:b] for one, a, b in zip(numbers, starts, ends, strict=True)]))
        starts = ends
    return found


def _from_messages(columns: Sequence[_Column], transport: Transport) -> list[torch.Tensor]:
    """A message for each large tensor, and one for all others of a device.

    Collective: every rank of the group must call, with columns of equal shapes.
    """
    found = [column.tensor.new_empty(column.whole) for column in columns]
    for places in _groups(columns):
        some = [columns[place] for place in places]
        if len(some) == 1:
            found[places[0]] = _alone(some[0], transport)
            continue
        each = [sum(lengths) for lengths in zip(*(one.lengths() for one in some), strict=True)]
        mine = packed([one.tensor for one in some])
        rows = transport.all_gather(_padded(mine, max(each))).view(transport.size, -1)
        starts = [0] * transport.size
        for place, one in zip(places, some, strict=True):
            lengths = one.lengths()
            parts = [row[start : start + length] for row, start, length in zip(rows, starts, lengths, strict=True)]
            found[place] = torch.cat(parts).view(one.tensor.dtype).view(one.whole)
            starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    return found


def _alone(column: _Column, transport: Transport) -> torch.Tensor:
    tensor, shapes = column.tensor, column.shapes
    lengths = column.lengths()
    rows = transport.all_gather(_padded(as_bytes(tensor), max(lengths)))
    if len(set(shapes)) > 1:
        parts = torch.split(rows, max(lengths))
        rows = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
    return rows.view(tensor.dtype).view(column.whole)


def _padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    if len(tensor) == length:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((length - len(tensor), *tensor.shape[1:]))])


def _groups(columns: Sequence[_Column]) -> list[list[int]]:
    """The places of columns that travel in one message, the same on every rank."""
    found: dict[object, list[int]] = {}
    for place, column in enumerate(columns):
        longest = max(column.lengths())
        if longest:
            found.setdefault((column.tensor.device, place if longest >= LARGE else -1), []).append(place)
    return list(found.values())


def _joined(values: Sequence[Any]) -> Any:
    """Of lists their items, of other objects a list; nothing stays nothing."""
    if all(isinstance(value, list | tuple) for value in values):
        items = [item for value in values for item in value]
        return tuple(items) if all(isinstance(value, tuple) for value in values) else items
    return None if all(value is None for value in values) else list(values)


def _require_only_lengths_differ(agreed: Agreed) -> None:
    everyone = agreed.everyone or []
    kinds = {tuple((leaf.path, leaf.dtype, leaf.device, _dims_after_first(leaf)) for leaf in one) for one in everyone}
    if len(kinds) > 1:
        alike = {tuple((leaf.path, leaf.dtype, leaf.device, len(leaf.shape)) for leaf in one) for one in everyone}
        advice = (
            "pad the dim that differs first: accelerator.pad_across_processes(data, dim=1)"
            if len(alike) == 1
            else "make them alike on every rank, or send them as objects: gather_object"
        )
        raise ShapeMismatch(
            "gather needs the same structure, dtypes and dims on all ranks (only dim 0 may differ), found"
            f"{table(everyone, agreed.sites)}\n{advice}"
        )


def _dims_after_first(leaf: Leaf) -> tuple[int, ...] | None:
    return leaf.shape[1:] if leaf.shape else None
