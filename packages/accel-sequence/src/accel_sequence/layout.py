"""Divide the positions of a sequence over ranks, by arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """The division of a sequence over the ranks of a group.

    Ranks that exchange heads are neighbours. They hold neighbouring parts of one chunk, of which there are as many as
    the ring has places. A chunk has two blocks, one of the head and one of the tail of the sequence, so that all places
    of the ring have equal work under a causal mask.

    Args:
        ring: Places of the ring over which keys and values travel.
        heads: Ranks over which heads are divided inside of attention.
    """

    ring: int = 1
    heads: int = 1

    @property
    def size(self) -> int:
        """The number of ranks that share a sequence."""
        return self.ring * self.heads

    @property
    def multiple(self) -> int:
        """The number that padded lengths are multiples of."""
        return math.lcm(self._blocks, self.size)

    @property
    def _blocks(self) -> int:
        return 1 if self.ring == 1 else 2 * self.ring

    def padded(self, length: int) -> int:
        """Return the smallest length that divides, and is not below a length."""
        return -(-length // self.multiple) * self.multiple

    def runs(self, place: int, padded: int) -> list[tuple[int, int]]:
        """Return the first position and the end of each block in the chunk of a place of the ring.

        Args:
            place: The place of the ring.
            padded: Length of the whole sequence.
        """
        block = padded // self._blocks
        starts = [0] if self.ring == 1 else [place * block, (self._blocks - 1 - place) * block]
        return [(start, start + block) for start in starts]

    def positions(self, rank: int, padded: int) -> torch.Tensor:
        """Return the positions that a rank holds, in its order.

        Args:
            rank: The rank in the group.
            padded: Length of the whole sequence.

        Shape:
            (padded / size,)
        """
        chunk = torch.cat([torch.arange(*run, device="cpu") for run in self.runs(rank // self.heads, padded)])
        part = padded // self.size
        return chunk[rank % self.heads * part :][:part]

    def order(self, padded: int) -> torch.Tensor:
        """Return the positions in the order of the ranks.

        Args:
            padded: Length of the whole sequence.

        Shape:
            (padded,)
        """
        return torch.cat([self.positions(rank, padded) for rank in range(self.size)])
