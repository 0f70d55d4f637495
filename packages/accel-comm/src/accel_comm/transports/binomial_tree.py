"""Small messages between the ranks of a process group: up a tree of ranks to the first, and down again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import torch

#: tags of messages: far from those that people choose, another one for each call, so that what is left of a call that
#: was interrupted never meets the next
_TAGS, _FIRST_TAG = 1 << 28, 1 << 29


@final
class BinomialTree:
    """A binomial tree over the ranks of the default group, which must serve the CPU.

    A call is 2 (N - 1) messages in 2 log N steps; gloo's own gather is N (N - 1) messages in N - 1 steps.
    """

    def __init__(self, rank: int, size: int, block: int) -> None:
        import torch
        import torch.distributed

        self._torch, self._dist = torch, torch.distributed
        self._rank, self._size, self._calls = rank, size, 0
        lowest = rank & -rank if rank else size
        self._parent = rank - lowest
        #: the children, and the ranks of each one's branch: itself, and those that follow it
        self._branches = [range(rank + k, min(rank + 2 * k, size)) for k in _powers(min(lowest, size - rank))]
        #: those of this rank's own branch
        self._mine = range(rank, min(rank + lowest, size))
        self._block = bytearray(block)
        self._blocks = [bytearray(block) for _ in self._branches]
        self._block_tensor = self._tensor(self._block)
        self._block_tensors = [self._tensor(block) for block in self._blocks]

    def all_reduce(self, mine: bytes, join: Callable[[Sequence[bytes]], bytes]) -> bytes:
        """The result of `join` over the ranks' blocks, some neighbours at once; filled up with zeros, the same on all.

        Collective: every rank of the group must call, with blocks of at most the length of a block.
        """
        length = len(self._block)
        self._block[:] = mine.ljust(length, b"\0")

        def joined() -> None:
            if self._blocks:
                self._block[:] = join([mine, *map(bytes, self._blocks)]).ljust(length, b"\0")

        self._up_and_down(self._block_tensors, joined, self._block_tensor, self._block_tensor)
        return bytes(self._block)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """The rows of all ranks, in rank order.

        Collective: every rank of the group must call, with rows of one length.
        """
        length = len(mine)
        rows = bytearray(length * self._size)
        rows[self._rank * length : (self._rank + 1) * length] = mine
        whole = self._tensor(rows)

        def of(ranks: range) -> torch.Tensor:
            return whole[ranks.start * length : ranks.stop * length]

        self._up_and_down([of(ranks) for ranks in self._branches], lambda: None, of(self._mine), whole)
        return [bytes(rows[start : start + length]) for start in range(0, len(rows), length)]

    def _up_and_down(
        self, heard: Sequence[torch.Tensor], join: Callable[[], None], up: torch.Tensor, down: torch.Tensor
    ) -> None:
        """Receives from the children, joins, sends to the parent, and passes the parent's answer on to the children."""
        self._calls += 1
        tag = _FIRST_TAG + 2 * (self._calls % _TAGS)
        send, receive = self._dist.isend, self._dist.irecv
        children = [ranks.start for ranks in self._branches]
        begun: list[Any] = [receive(tensor, child, tag=tag) for tensor, child in zip(heard, children, strict=True)]
        for work in begun:
            work.wait()
        join()
        if self._rank:
            # heard only when the other is sent: both may be the same memory
            _wait(send(up, self._parent, tag=tag))
            _wait(receive(down, self._parent, tag=tag + 1))
        for work in [send(down, child, tag=tag + 1) for child in reversed(children)]:
            _wait(work)

    def _tensor(self, content: bytearray) -> torch.Tensor:
        return self._torch.frombuffer(content, dtype=self._torch.uint8)


def _wait(work: Any) -> None:
    work.wait()


def _powers(below: int) -> list[int]:
    return [1 << power for power in range(below.bit_length()) if 1 << power < below]
