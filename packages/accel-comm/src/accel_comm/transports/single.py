"""The exchange of a process that is alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, final

from accel_comm.transports._base import ROOM, Join, PointToPoint, Reduction, Transport, longest_of
from accel_comm.transports.votes import AgreedVotes, Votes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@final
class Single(Transport):
    """A world of a single rank: values come back as they are, and nothing waits."""

    rank, size, inline_bytes = 0, 1, ROOM

    def __init__(self) -> None:
        self.point_to_point = SinglePoint()

    @property
    def world(self) -> Transport:
        return self

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        return [payload]

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        return [part]

    def skip(self, what: str) -> None:
        pass

    def votes(self, what: str) -> Votes:
        return AgreedVotes(what, self)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        return x / self.size if how == "mean" else x.clone()

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        return x

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        return [value]

    def broadcast_object(self, value: T, source: int) -> T:
        return value

    def close(self) -> None:
        pass


@final
class SinglePoint(PointToPoint):
    """The messages of a process that is alone: its own."""

    inline_bytes = ROOM

    def supports_device(self, kind: str) -> bool:
        return False

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        return payloads[source]

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        pass

    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        return [payload]
