"""Exchange tensors between the ranks that share a sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

import torch
import torch.distributed as dist

Wait = Callable[[], list[torch.Tensor]]


class SequencePeers(ABC):
    """The ranks of a group, of which this process is one. Every call is a collective of the group."""

    rank: int
    size: int

    @abstractmethod
    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Send row i to rank i, and return the rows that the ranks have for this one.

        Args:
            x: One row for each rank, contiguous.
        """

    @abstractmethod
    def shift(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Wait:
        """Begin to send contiguous tensors to the next rank.

        Args:
            tensors: The tensors.
            tag: A number that tells this call from another that is under way.

        Returns:
            A function that waits for those of the rank before.
        """

    @abstractmethod
    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks."""

    @abstractmethod
    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, stacked.

        Shape:
            x (...), returned (size, ...)
        """


@final
class GroupPeers(SequencePeers):
    """The ranks of a process group of torch.

    Args:
        group: The process group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()
        self._ranks = dist.get_process_group_ranks(group)

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=self._group)
        return received

    def shift(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Wait:
        after, before = self._ranks[(self.rank + 1) % self.size], self._ranks[(self.rank - 1) % self.size]
        received = [torch.empty_like(one) for one in tensors]
        calls = []
        for index, (mine, theirs) in enumerate(zip(tensors, received, strict=True), tag):
            calls.append(dist.P2POp(dist.isend, mine, after, self._group, tag=index))
            calls.append(dist.P2POp(dist.irecv, theirs, before, self._group, tag=index))
        works = dist.batch_isend_irecv(calls)

        def wait() -> list[torch.Tensor]:
            for work in works:
                work.wait()
            return received

        return wait

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=self._group)
        return total

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows = x.new_empty((self.size, *x.shape))
        dist.all_gather(list(rows.unbind()), x, group=self._group)
        return rows
