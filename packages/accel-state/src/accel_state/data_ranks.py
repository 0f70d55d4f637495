"""Exchange between groups of processes that are served the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, final

from accel_comm.transports import Join, Reduction, Transport, longest_of
from accel_comm.transports.votes import Votes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@final
class DataRanks(Transport):
    """The processes of a job, of which each `replicas` neighbours share a rank.

    The first process of a rank speaks for it, and all receive the results. Each call is a call of the whole job. So it
    begins with the same comparison of calls, and replicas never disagree about a result. With a single rank, tensors
    come back as they are.

    Args:
        world: Transport of the processes.
        replicas: Processes that share a rank; has to divide their number.
    """

    def __init__(self, world: Transport, replicas: int) -> None:
        if replicas < 1 or world.size % replicas:
            raise ValueError(
                f"{world.size} processes cannot be divided into groups of {replicas}; start a multiple of {replicas}"
            )
        self._world = world
        self.replicas, self.inline_bytes = replicas, world.inline_bytes
        self.point_to_point = world.point_to_point
        self.rank, self.size = world.rank // replicas, world.size // replicas
        self._speaks = world.rank % replicas == 0

    @property
    def world(self) -> Transport:
        return self._world

    def __reduce__(self) -> tuple[type[DataRanks], tuple[Transport, int]]:
        return DataRanks, (self._world, self.replicas)

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        return self._world.exchange(what, payload if self._speaks else b"")[:: self.replicas]

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:

        def join_spoken(parts: Sequence[bytes]) -> bytes:
            return join(_spoken(parts)) if any(parts) else b""

        parts = self._world.agree(what, about, part if self._speaks else b"", join_spoken)
        return None if parts is None else _spoken(parts)

    def skip(self, what: str) -> None:
        self._world.skip(what)

    def votes(self, what: str) -> Votes:
        return self._world.votes(what)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.size == 1:
            return x
        by_process = self._world.all_gather(x)
        rows = x.shape[0] if x.ndim else 1
        return by_process.view(self.size, self.replicas, rows, *x.shape[1:])[:, 0].flatten(0, 1)

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        if self.size == 1:
            return x / self.size if how == "mean" else x.clone()
        if how in ("max", "min"):
            return self._world.all_reduce(x, how)
        total = self._world.all_reduce(x if self._speaks else x.new_zeros(x.shape), "sum")
        return total / self.size if how == "mean" else total

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        return self._world.broadcast(x, source * self.replicas)

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        values: list[T | None] = self._world.all_gather_objects(value if self._speaks else None, what)
        return values[:: self.replicas]  # type: ignore[return-value] # only others have None

    def broadcast_object(self, value: T, source: int) -> T:
        return self._world.broadcast_object(value, source * self.replicas)

    def close(self) -> None:
        self._world.close()


def _spoken(parts: Sequence[bytes]) -> Sequence[bytes]:
    """Return the parts of processes that speak, or one of several that all have nothing to say."""
    return [part for part in parts if part] or parts[:1]
