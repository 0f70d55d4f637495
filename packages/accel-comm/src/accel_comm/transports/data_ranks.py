"""Exchange between groups of processes that are served the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_comm.transports import serialization
from accel_comm.transports._base import Join, Reduction, Transport, longest_of
from accel_comm.transports.votes import Votes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@final
class DataRanks(Transport):
    """The processes of a job, of which `copies` neighbours have one rank: the first speaks for it, all hear results.

    Each call is a call of the whole job. So it begins with the same comparison of calls, and copies never disagree
    about a result. With a single rank, tensors come back as they are.
    """

    def __init__(self, world: Transport, copies: int) -> None:
        if copies < 1 or world.size % copies:
            raise ValueError(
                f"{world.size} processes cannot be divided into groups of {copies}; start a multiple of {copies}"
            )
        self._world = world
        self.copies = copies
        self.rank, self.size = world.rank // copies, world.size // copies
        self._speaks = world.rank % copies == 0

    @property
    def world(self) -> Transport:
        """The transport in which each process has a rank of its own."""
        return self._world

    @property
    def room(self) -> int:
        """Bytes of a part that travels with `agree`, at most."""
        return self._world.room

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """The payload of the first copy of each rank. Collective: every process must call."""
        return self._world.exchange(what, payload if self._speaks else b"")[:: self.copies]

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """The parts of the first copies, or fewer that `join` made of them; None if `about` differs on any process.

        Collective: every process must call.
        """

        def join_spoken(parts: Sequence[bytes]) -> bytes:
            return join(_spoken(parts)) if any(parts) else b""

        parts = self._world.agree(what, about, part if self._speaks else b"", join_spoken)
        return None if parts is None else _spoken(parts)

    def votes(self, what: str) -> Votes:
        """A new series of votes, which all processes cast. Collective: every process must begin the same series."""
        return self._world.votes(what)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The `x` of the first copy of each rank, concatenated in rank order. Collective: every process must call."""
        if self.size == 1:
            return x
        by_process = self._world.all_gather(x)
        rows = x.shape[0] if x.ndim else 1
        return by_process.view(self.size, self.copies, rows, *x.shape[1:])[:, 0].flatten(0, 1)

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every process: the `x` of the first copies combined element by element.

        Collective: every process must call.
        """
        if self.size == 1:
            return x / self.size if how == "mean" else x.clone()
        if how in ("max", "min"):
            return self._world.all_reduce(x, how)
        total = self._world.all_reduce(x if self._speaks else x.new_zeros(x.shape), "sum")
        return total / self.size if how == "mean" else total

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The numbers of the first copy of rank `source`. Collective: every process must call."""
        return self._world.broadcast(x, source * self.copies)

    def send(self, what: str, payload: bytes, source: int) -> bytes:
        """The payload of the first copy of rank `source`. Collective: every process must call."""
        return self._world.send(what, payload, source * self.copies)

    def broadcast_object(self, value: T, source: int) -> T:
        """The `value` of the first copy of rank `source`; pickled on the way. Collective: every process must call."""
        return self._world.broadcast_object(value, source * self.copies)

    def of_first_copy(self, value: T) -> T:
        """The `value` of the first process that has this rank; pickled on the way. Collective: every process."""
        payload = serialization.pack(value) if self._speaks else b""
        sent = self._world.exchange("values of the first copy of each data rank", payload)
        return value if self._speaks else serialization.unpack(sent[self.rank * self.copies])

    def meet(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """The notes of the first copies of these ranks. Collective: each of these first copies must call."""
        return self._world.meet(name, [rank * self.copies for rank in ranks], note)

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        """The payload that the first copy of rank `source` has for this rank. Collective: every process must call."""
        by_process = [payload for payload in payloads for _ in range(self.copies)]
        return self._world.scatter(what, by_process, source * self.copies)

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        """Fills the tensors `received` with those for this rank. Collective: every process must call."""
        by_process = [tensors for tensors in sent for _ in range(self.copies)]
        self._world.scatter_tensors(what, by_process, received, source * self.copies)

    def agree_apart(self, name: str, ranks: Sequence[int], yes: bool) -> bool:
        """Whether the first copies of these ranks say yes. Collective: each of these first copies must call."""
        return self._world.agree_apart(name, [rank * self.copies for rank in ranks], yes)

    def ordered_section(self, first: int) -> AbstractContextManager[None]:
        """Runs the block on the first copy of rank `first` before all others. Collective: every process must enter."""
        return self._world.ordered_section(first * self.copies)


def _spoken(parts: Sequence[bytes]) -> Sequence[bytes]:
    """The parts of processes that speak; of several that all have nothing to say, one."""
    return [part for part in parts if part] or parts[:1]
