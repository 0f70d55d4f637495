"""Find which block of a distributed tensor this process holds."""

from __future__ import annotations

import math
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable
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
    own = box_of(target).of(tensor, whole_box(tuple(tensor.shape))) if not is_distributed(tensor) else held_part(tensor)
    held_part(target).copy_(own)
    return target


def divided_axes(tensor: Any) -> list[tuple[int, Any]]:
    """Return the axes of the mesh that divide a tensor, with their placements, in the order in which they divide it.

    Raises:
        CheckpointError: The tensor holds sums that have not been added up.
    """
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    axes = list(enumerate(tensor.placements))
    if any(placement.is_partial() for _, placement in axes):
        raise CheckpointError(f"a tensor is a sum over processes that has not been added up: {tensor.placements}")
    strided = [pair for pair in axes if isinstance(pair[1], _StridedShard)]
    plain = [pair for pair in axes if isinstance(pair[1], Shard) and pair not in strided]
    # fully_shard divides what tensor parallelism has divided before, and so comes last although its axis comes first
    return [*plain, *reversed(strided)]


def box_of(tensor: torch.Tensor) -> Box:
    """Return the block of the whole tensor that this process holds.

    Raises:
        CheckpointError: The tensor is not divided as torch's `chunk` divides.
    """
    if not is_distributed(tensor):
        return whole_box(tuple(tensor.shape))
    divided: Any = tensor
    coordinate, sizes = divided.device_mesh.get_coordinate(), divided.device_mesh.shape
    offset, shape = [0] * tensor.dim(), list(tensor.shape)
    for axis, placement in divided_axes(tensor):
        chunk = -(-shape[placement.dim] // sizes[axis])
        begin = min(coordinate[axis] * chunk, shape[placement.dim])
        offset[placement.dim] += begin
        shape[placement.dim] = min(chunk, shape[placement.dim] - begin)
    held = tuple(held_part(tensor).shape)
    if held != tuple(shape):
        raise CheckpointError(
            f"a tensor of shape {list(tensor.shape)}, placed as {divided.placements}, has a part of shape {list(held)}"
            f" here: expected {shape}"
        )
    return Box(tuple(offset), tuple(shape))
