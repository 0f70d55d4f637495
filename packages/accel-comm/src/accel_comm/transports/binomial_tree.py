"""Reduce small messages over the ranks of a process group: up a tree of ranks to the first, and down again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import torch

#: tags of messages: far from those that people choose, another one for each call, so that what is left of a call that
#: was interrupted never meets the next
_TAGS, _FIRST_TAG = 1 << 28, 1 << 29


@final
class BinomialTree:
    """A binomial tree over the ranks of the default group, which must serve the CPU.

    A call takes 2 (N - 1) messages in 2 log N steps. Any thread may call, if no other thread is in a call.

    Args:
        rank: Rank of this process.
        size: Number of ranks.
        block: Bytes of a message.
    """

    def __init__(self, rank: int, size: int, block: int) -> None:
        import torch
        import torch.distributed

        self._torch, self._dist = torch, torch.distributed
        self._rank, self._size, self._calls = rank, size, 0
        #: the message that a thread waits for
        self._awaited: Any = None
        lowest = rank & -rank if rank else size
        self._parent, self._end = rank - lowest, rank + lowest
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
        self._receive(self._received)
        whole = join([mine, *map(bytes, self._blocks)]) if self._blocks else mine
        self._block[:] = whole.ljust(len(self._block), b"\0")
        self._pass_on(self._sent, self._sent)
        return bytes(self._block)

    def gather(self, row: bytes) -> list[bytes]:
        """Return the rows of all ranks, of one length, in rank order.

        Collective:
            Every rank must call.
        """
        rows, length = bytearray(row * self._size), len(row)
        whole = self._torch.frombuffer(rows, dtype=self._torch.uint8).view(self._size, length)
        # a branch is ranks in a row: that of a child as many as the child is away
        self._receive([whole[child : 2 * child - self._rank] for child in self._children])
        self._pass_on(whole[self._rank : self._end], whole)
        return [bytes(rows[start : start + length]) for start in range(0, len(rows), length)]

    def abandon(self) -> None:
        """End the wait of another thread in a call, and all exchange with the ranks, at the end of this process."""
        if self._awaited is not None:
            with suppress(RuntimeError):  # a wait that is too long ends all others: gloo's unbound_buffer.cc
                self._awaited.wait(timedelta(milliseconds=1))

    def _receive(self, parts: Sequence[torch.Tensor]) -> None:
        """Begin a call, and receive what the children send."""
        self._calls += 1
        self._tag = _FIRST_TAG + 2 * (self._calls % _TAGS)
        pairs = zip(parts, self._children, strict=True)
        self._finish([self._dist.irecv(part, child, tag=self._tag) for part, child in pairs])

    def _pass_on(self, branch: torch.Tensor, whole: torch.Tensor) -> None:
        """Send to the parent what the branch says, and to the children what all say."""
        send, down = self._dist.isend, self._tag + 1
        if self._rank:
            self._finish([send(branch, self._parent, tag=self._tag)])  # heard only then, in the same memory
            self._finish([self._dist.irecv(whole, self._parent, tag=down)])
        self._finish([send(whole, child, tag=down) for child in reversed(self._children)])

    def _finish(self, works: Sequence[Any]) -> None:
        for work in works:
            self._awaited = work
            work.wait()


def _powers(below: int) -> list[int]:
    return [1 << power for power in range(below.bit_length()) if 1 << power < below]
