"""The processes that measure one row together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch.distributed as dist


class Team(ABC):
    """What the harness needs from the processes of a row."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has come here.

        Collective: every rank must call.
        """

    @abstractmethod
    def agree(self, value: int) -> int:
        """Rank 0's value.

        Collective: every rank must call.
        """


@final
class Alone(Team):
    """One process."""

    def barrier(self) -> None:
        pass

    def agree(self, value: int) -> int:
        return value


@final
class Group(Team):
    """The ranks of torch's default process group."""

    def barrier(self) -> None:
        dist.barrier()

    def agree(self, value: int) -> int:
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]
