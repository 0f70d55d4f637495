"""The transport of a rehearsal, which answers as peers with equal data would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

import torch
import torch.distributed as dist
from accel_comm.transports import Join, Reduction, Transport, longest_of
from accel_comm.transports._base import ROOM
from accel_comm.transports.single import SinglePoint
from accel_comm.transports.votes import AgreedVotes, Votes

T = TypeVar("T")


@final
class EqualPeers(Transport):
    """A world in which each rank says what this rank says.

    Tensors go through the process group that is open, which is one of torch's that sends nothing, so that calls and
    bytes are those of a job.

    Args:
        rank: Rank of this process.
        size: Number of ranks.
        on_call: What is told of each call that all ranks have to make.
    """

    inline_bytes = ROOM

    def __init__(self, rank: int, size: int, *, on_call: Callable[[str], None]) -> None:
        self._on_call = on_call
        self.rank, self.size = rank, size
        self.point_to_point = SinglePoint()

    @property
    def world(self) -> Transport:
        return self

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        return self.all_gather_objects(payload, what)

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        return self.all_gather_objects(part, what)

    def skip(self, what: str) -> None:
        pass

    def votes(self, what: str) -> Votes:
        return AgreedVotes(what, self)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().reshape(x.shape or (1,)).contiguous()
        out = torch.cat([x] * self.size)
        if x.numel():
            dist.all_gather(list(out.chunk(self.size)), x)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        y = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y * self.size if how == "sum" else y / 1 if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        x = x.detach().contiguous()
        dist.broadcast(x, source)
        return x.clone()

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        self._on_call(what)
        return [value] * self.size

    def broadcast_object(self, value: T, source: int) -> T:
        self._on_call("broadcast_object")
        return value

    def close(self) -> None:
        pass
