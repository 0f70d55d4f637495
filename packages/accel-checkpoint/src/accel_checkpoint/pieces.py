"""Find which block of a distributed tensor this process holds."""

from __future__ import annotations

import math
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_checkpoint.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: where it begins, and its shape."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements in the block."""
        return math.prod(self.shape)

    def overlap(self, other: Box) -> Box | None:
        """Return the block that both have, or None if they have no element in common."""
        spans = list(zip(self.offset, self.shape, other.offset, other.shape, strict=True))
        begins = [max(mine, theirs) for mine, _, theirs, _ in spans]
        ends = [min(mine + length, theirs + other_length) for mine, length, theirs, other_length in spans]
        if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
            return None
        return Box(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))

    def moved(self, dim: int, by: int) -> Box:
        """Return the block so much further along a dim."""
        return Box((*self.offset[:dim], self.offset[dim] + by, *self.offset[dim + 1 :]), self.shape)

    def of(self, tensor: torch.Tensor, outer: Box) -> torch.Tensor:
        """Return the view of this block in a tensor that holds the block `outer`."""
        begins = [begin - start for begin, start in zip(self.offset, outer.offset, strict=True)]
        return tensor[tuple(slice(begin, begin + length) for begin, length in zip(begins, self.shape, strict=True))]


def whole_box(shape: tuple[int, ...]) -> Box:
    """Return the block that is all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def cover_once(shape: tuple[int, ...], boxes: Iterable[Box]) -> bool:
    """Return whether blocks that are inside of a tensor have each of its numbers exactly once."""
    # The coordinates of each dim move to random places. Volumes are then polynomials of these places, which are equal
    # only if each number is in one block; others have equal values with a probability below dims / 2**64
    # (Schwartz and Zippel). So the cost grows with the number of blocks, and not with its square.
    places: defaultdict[tuple[int, int], int] = defaultdict(lambda: secrets.randbits(64))

    def volume(box: Box) -> int:
        spans = enumerate(zip(box.offset, box.shape, strict=True))
        return math.prod([places[dim, begin + length] - places[dim, begin] for dim, (begin, length) in spans])

    return sum(map(volume, boxes)) == volume(whole_box(shape))


def is_distributed(tensor: object) -> bool:
    """Return whether processes hold parts or copies of a tensor (a DTensor)."""
    # no tensor is divided while the module that divides has not been imported, which takes a second
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def held_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds, in the memory of the tensor."""
    plain = tensor.detach()
    return plain._local_tensor if is_distributed(plain) else plain  # type: ignore[attr-defined] # a DTensor has it


def like(tensor: torch.Tensor, layout: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
    """Return a tensor with the values of another, distributed as `layout` is.

    Args:
        tensor: The values: whole, or distributed alike.
        layout: Tensor whose distribution is taken.
        into: Tensor to write into. By default it is a new one.
    """
    target = torch.empty_like(layout.detach(), dtype=tensor.dtype) if into is None else into
    if is_distributed(tensor):
        held_part(target).copy_(held_part(tensor))
        return target
    for box, held in blocks_of(target):
        held.copy_(box.of(tensor, whole_box(tuple(tensor.shape))))
    return target


def divided_axes(tensor: Any) -> list[tuple[int, Any]]:
    """Return the axes of the mesh that divide a tensor, with their placements, in the order in which they divide it.

    Raises:
        CheckpointError: The tensor holds sums that have not been added up.
    """
    from torch.distributed.tensor.placement_types import _StridedShard

    axes = _divided(tensor)
    strided = [pair for pair in axes if isinstance(pair[1], _StridedShard)]
    plain = [pair for pair in axes if pair not in strided]
    # fully_shard divides what tensor parallelism has divided before, and so comes last although its axis comes first
    return [*plain, *reversed(strided)]


def _divided(tensor: Any) -> list[tuple[int, Any]]:
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    axes = list(enumerate(tensor.placements))
    if any(placement.is_partial() for _, placement in axes):
        raise CheckpointError(f"a tensor is a sum over processes that has not been added up: {tensor.placements}")
    return [pair for pair in axes if isinstance(pair[1], Shard | _StridedShard)]


def packed_groups(tensor: Any) -> dict[int, int]:
    """Return the dims in which a process holds a part of each of several groups, and how many groups they have.

    So are weights divided that have the rows of two layers, one behind the other.

    Raises:
        CheckpointError: Such a dim is divided twice.
    """
    if not is_distributed(tensor):
        return {}
    from torch.distributed.tensor.placement_types import _StridedShard

    groups: dict[int, int] = {}
    # the placement of the last axis of a dim has groups; that of an earlier one says what fully_shard has divided
    seen: set[int] = set()
    for _, placement in reversed(_divided(tensor)):
        if placement.dim in groups:
            raise CheckpointError(f"a tensor of packed rows is divided twice in one dim: {tensor.placements}")
        if isinstance(placement, _StridedShard) and placement.dim not in seen:
            groups[placement.dim] = int(placement.split_factor)
        seen.add(placement.dim)
    return groups


def piece_name(name: str, box: Box, shape: Sequence[int], groups: Mapping[int, int]) -> str:
    """Return the name under which a process stores a block of a tensor.

    Args:
        name: Name of the tensor.
        box: The block.
        shape: Shape of the tensor.
        groups: Its dims with groups (`packed_groups`), of each of which a process stores a block of its own.
    """
    return name + "".join(f"#{box.offset[dim] * count // shape[dim]}" for dim, count in groups.items())


def blocks_of(tensor: torch.Tensor) -> list[tuple[Box, torch.Tensor]]:
    """Return the blocks of the whole tensor that this process holds, each with the view of what it holds of it.

    It is one block, but for packed weights (`packed_groups`).

    Raises:
        CheckpointError: The tensor is not divided as torch's `chunk` divides.
    """
    held = held_part(tensor)
    if not is_distributed(tensor):
        return [(whole_box(tuple(tensor.shape)), held)]
    divided: Any = tensor
    coordinate, sizes, groups = divided.device_mesh.get_coordinate(), divided.device_mesh.shape, packed_groups(tensor)
    offset, shape = [0] * tensor.dim(), [int(size) for size in tensor.shape]
    for dim, count in groups.items():
        shape[dim] //= count
    for axis, placement in divided_axes(tensor):
        chunk = -(-shape[placement.dim] // sizes[axis])
        begin = min(coordinate[axis] * chunk, shape[placement.dim])
        offset[placement.dim] += begin
        shape[placement.dim] = min(chunk, shape[placement.dim] - begin)
    expected = [size * groups.get(dim, 1) for dim, size in enumerate(shape)]
    if list(held.shape) != expected:
        raise CheckpointError(
            f"a tensor of shape {list(tensor.shape)}, placed as {divided.placements}, has a part of shape"
            f" {list(held.shape)} here: expected {expected}"
        )
    blocks = [(Box(tuple(offset), tuple(shape)), held)]
    for dim, count in groups.items():
        step, length = int(tensor.shape[dim]) // count, shape[dim]
        blocks = [
            (box.moved(dim, number * step), view.narrow(dim, number * length, length))
            for box, view in blocks
            for number in range(count)
        ]
    return blocks
