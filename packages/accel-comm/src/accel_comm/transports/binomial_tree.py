"""Reduce small messages over the ranks of a process group: up a tree of ranks to the first, and down again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

#: tags of messages: far from those that people choose, another one for each call, so that what is left of a call that
#: was interrupted never meets the next
_TAGS, _FIRST_TAG = 1 << 28, 1 << 29


@final
class BinomialTree:
    """A binomial tree over the ranks of the default group, which must serve the CPU.

    A call takes 2 (N - 1) messages in 2 log N steps.

    Args:
        rank: Rank of this process.
        size: Number of ranks.
        block: Bytes of a message.
    """

    def __init__(self, rank: int, size: int, block: int) -> None:
        import torch
        import torch.distributed

        self._dist = torch.distributed
        self._rank, self._calls = rank, 0
        lowest = rank & -rank if rank else size
        self._parent = rank - lowest
        #: each at the head of a branch of twice as many ranks as that of the child before
        self._children = [rank + step for step in _powers(min(lowest, size - rank))]
        self._block = bytearray(block)
        self._blocks = [bytearray(block) for _ in self._children]
        self._sent, *self._received = (
            torch.frombuffer(block, dtype=torch.uint8) for block in (self._block, *self._blocks)
        )

    def all_reduce(self, mine: bytes, join: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """Return what `join` makes of the ranks' blocks, filled up with zeros, the same on all ranks.

        Args:
            mine: Block of this rank, of at most the length of a message.
            join: Function that makes one block of those of some neighbours.

        Collective:
            Every rank must call.
        """
        self._calls += 1
        up = _FIRST_TAG + 2 * (self._calls % _TAGS)
        down = up + 1
        send, receive = self._dist.isend, self._dist.irecv
        _finish([receive(block, child, tag=up) for block, child in zip(self._received, self._children, strict=True)])
        whole = join([mine, *map(bytes, self._blocks)]) if self._blocks else mine
        self._block[:] = whole.ljust(len(self._block), b"\0")
        if self._rank:
            _finish([send(self._sent, self._parent, tag=up)])  # heard only then, in the same memory
            _finish([receive(self._sent, self._parent, tag=down)])
        _finish([send(self._sent, child, tag=down) for child in reversed(self._children)])
        return bytes(self._block)


def _finish(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _powers(below: int) -> list[int]:
    return [1 << power for power in range(below.bit_length()) if 1 << power < below]
