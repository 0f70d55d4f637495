"""The interface of a means of exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from accel_comm.transports import serialization
from accel_comm.transports.votes import AgreedVotes, Votes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Reduction = Literal["sum", "mean", "max", "min"]
Join = Callable[[Sequence[bytes]], bytes]

#: bytes that travel with an agreement where ranks share memory
ROOM = 1 << 17


def longest_of(parts: Sequence[bytes]) -> bytes:
    """The part of the only rank that has a part."""
    return max(parts, key=len)


class Transport(ABC):
    """Exchange between the processes of one group. Collective: every rank of the group must call."""

    rank: int
    size: int
    #: how many processes have each rank; they are served the same samples
    copies: int = 1

    @property
    def world(self) -> Transport:
        """The transport in which each process has a rank of its own."""
        return self

    def of_first_copy(self, value: T) -> T:
        """The `value` of the first process that has this rank. Collective: every process must call."""
        return value

    @abstractmethod
    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """Every rank's payload, of any length, in rank order; one message if all are small.

        Raises: CollectiveMismatch on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """

    @property
    def room(self) -> int:
        """Bytes of a part that travels with `agree`, at most."""
        return ROOM

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """The ranks' parts in rank order, or fewer that `join` made of them; None on all ranks if `about` differs.

        `join` makes a part of several; it never sees parts of ranks whose `about` differs. The host waits for other
        hosts, and for no device.

        Raises: CollectiveMismatch on every rank if `what` is not the same on all.
        Collective: every rank of the group must call, with an `about` of at most 16 bytes, of one length.
        """
        sent, start = self.exchange(what, about + part), len(about)
        return [payload[start:] for payload in sent] if all([payload.startswith(about) for payload in sent]) else None

    def votes(self, what: str) -> Votes:
        """A new series of votes of all ranks. Collective: every rank of the group must begin the same series."""
        return AgreedVotes(what, self)

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order.

        Shape: (n, ...) on each rank -> (size * n, ...) on all.
        Collective: every rank of the group must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank: the ranks' `x` combined element by element.

        Shape: unchanged.
        Collective: every rank of the group must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """A new tensor with the numbers of rank `source`; other ranks give a tensor of the same shape and dtype.

        Collective: every rank of the group must call.
        """

    def close(self) -> None:
        """Tells the others that this rank exchanges nothing any more."""
        return None

    @abstractmethod
    def ordered_section(self, first: int) -> AbstractContextManager[None]:
        """Runs the block on rank `first` before the others that enter it, who wait however long that takes.

        Raises: PeerFailed when that rank fails in the block, or is gone.
        Collective: of each group of ranks, all must enter.
        """

    def send(self, what: str, payload: bytes, source: int) -> bytes:
        """The payload of rank `source`, which receives no answer if the means of exchange allows it.

        Raises: CollectiveMismatch on a rank whose `what` is not the source's.
        Collective: every rank of the group must call.
        """
        return self.exchange(what, payload if self.rank == source else b"")[source]

    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        """The payloads of all ranks in rank order, on rank `target`; none on the others, which wait for nobody.

        Collective: every rank of the group must call, with the `lengths` of all payloads, on which they have agreed.
        """
        payloads = self.exchange(f"gather (to rank {target})", payload)
        return payloads if self.rank == target else []

    @abstractmethod
    def meet(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """Leaves a note, of what JSON has, and returns those of these ranks; other threads may exchange meanwhile.

        Raises: PeerFailed if a rank is gone.
        Collective: each of these ranks must call.
        """

    @abstractmethod
    def agree_apart(self, name: str, ranks: Sequence[int], yes: bool) -> bool:
        """Whether all these ranks say yes, the same on all; other threads may exchange meanwhile.

        Raises: PeerFailed if a rank is gone.
        Collective: each of these ranks must call.
        """

    @property
    def scatter_room(self) -> int:
        """Bytes of a payload that travels in the first message of `scatter`, at most."""
        return ROOM

    def carries(self, kind: str) -> bool:
        """Whether tensors of devices of this kind travel without a copy on the host."""
        return False

    @abstractmethod
    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        """The payload that rank `source` has for this rank; other ranks give no payloads, and the source hears nothing.

        Raises: CollectiveMismatch on a rank whose `what` is not the source's.
        Collective: every rank of the group must call.
        """

    @abstractmethod
    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        """Fills the tensors `received` of each rank with the numbers of those that rank `source` has `sent` to it.

        Other ranks send nothing, and the source receives nothing: it has tensors for each rank, in rank order.

        Collective: every rank of the group must call, with tensors without gaps, alike at both ends.
        """

    def broadcast_object(self, value: T, source: int) -> T:
        """The `value` of rank `source`; pickled on the way.

        Collective: every rank of the group must call.
        """
        if self.size == 1:
            return value
        sent = self.send(
            f"broadcast_object (from rank {source})", serialization.pack(value) if self.rank == source else b"", source
        )
        return value if self.rank == source else serialization.unpack(sent)

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        """Every rank's `value`, in rank order; pickled on the way.

        Raises: CollectiveMismatch on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        return [serialization.unpack(payload) for payload in self.exchange(what, serialization.pack(value))]

    def barrier(self) -> None:
        """Returns when every rank has called.

        Raises: CollectiveMismatch on every rank if others call another operation.
        Collective: every rank of the group must call.
        """
        self.agree("wait_for_everyone")
