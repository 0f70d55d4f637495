"""The interface of a means of exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import torch

    from accel_comm.transports.votes import Votes

T = TypeVar("T")
Reduction = Literal["sum", "mean", "max", "min"]
Join = Callable[[Sequence[bytes]], bytes]

#: most bytes of a part that is in an agreement of ranks that share memory
ROOM = 1 << 17


def longest_of(parts: Sequence[bytes]) -> bytes:
    """Return the part of the only rank that has a part."""
    return max(parts, key=len)


class PointToPoint(ABC):
    """The messages of which each rank receives only its own."""

    @property
    @abstractmethod
    def inline_bytes(self) -> int:
        """The most bytes of a payload that is in the first message of `scatter`."""

    @abstractmethod
    def supports_device(self, kind: str) -> bool:
        """Return whether tensors of devices of this type are sent without a copy on the host."""

    @abstractmethod
    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        """Return the payload that rank `source` has for this rank.

        The source hears nothing of the others.

        Args:
            what: Name of the operation, for error messages.
            payloads: One payload for each rank, in rank order; none on other ranks.
            source: Rank that sends.

        Raises:
            CollectiveMismatch: On a rank whose `what` is not the source's.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        """Fill tensors of each rank with the values of those that one rank sends to it.

        Args:
            what: Name of the operation, for the flight recorder.
            sent: The tensors for each rank, in rank order; none on other ranks.
            received: The tensors to fill, contiguous, and as many and of the sizes that are sent; none at the source.
            source: Rank that sends.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        """Return the payloads of all ranks in rank order on one rank, and nothing on the others.

        Args:
            payload: Payload of this rank.
            lengths: Bytes of the payloads of all ranks, the same on every rank.
            target: Rank that receives; the others wait for nobody.

        Collective:
            Every rank must call.
        """


class Transport(ABC):
    """The exchange between the ranks of a group.

    A transport of several processes notes each exchange in the `FlightRecorder`. It raises `PeerLost` if another
    process is gone (`PeerErrors`), and pickles as the transport of the process that reads it.
    """

    rank: int
    size: int
    #: processes that share each rank, and are served the same samples
    replicas: int = 1
    #: most bytes of a part in `agree`
    inline_bytes: int
    #: messages between single processes, which count as in `world`
    point_to_point: PointToPoint

    @property
    @abstractmethod
    def world(self) -> Transport:
        """The transport in which each process has a rank of its own."""

    @abstractmethod
    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """Return the payloads of all ranks, in rank order.

        Args:
            what: Name of the operation, which has to be the same on all ranks.
            payload: Payload of this rank, of any length; small payloads take one message.

        Raises:
            CollectiveMismatch: On every rank, if `what` differs.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """Return the parts of the ranks, or None on all ranks if `about` differs.

        The host waits for other hosts, and for no device.

        Args:
            what: Name of the operation, which has to be the same on all ranks.
            about: Digest of the data, of at most 16 bytes and one length on all ranks.
            part: Payload of this rank, of at most `inline_bytes`.
            join: Function that makes one part of several, if not all parts can be returned; it never sees parts of
                ranks whose `about` differs.

        Returns:
            The parts in rank order, or fewer that `join` has made of them.

        Raises:
            CollectiveMismatch: On every rank, if `what` differs.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def skip(self, what: str) -> None:
        """Count an agreement that this rank has no need of, without a message.

        Args:
            what: Name of the agreement. If another rank waits in it, the watchdog says so and ends the job.

        Collective:
            Every rank must call this or `agree`.
        """

    @abstractmethod
    def votes(self, what: str) -> Votes:
        """Return a new series of votes of all ranks.

        Collective:
            Every rank must begin the same series.
        """

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated in rank order.

        Shape:
            (n, ...) on each rank -> (size * n, ...) on all.

        Collective:
            Every rank must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """Return a new tensor, the tensors of all ranks combined element by element.

        A mean of integers is a float.

        Collective:
            Every rank must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return a tensor with the values of rank `source`.

        Collective:
            Every rank must call, with equal shapes and dtypes.
        """

    @abstractmethod
    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        """Return the values of all ranks, pickled for the exchange, in rank order.

        Args:
            value: Value of this rank.
            what: Name of the operation, which has to be the same on all ranks.

        Raises:
            CollectiveMismatch: On every rank, if `what` differs.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def broadcast_object(self, value: T, source: int) -> T:
        """Return the value of rank `source`, pickled for the exchange.

        Collective:
            Every rank must call.
        """

    @abstractmethod
    def close(self) -> None:
        """Tell the other ranks that this rank exchanges nothing any more."""

    def barrier(self) -> None:
        """Wait until every rank has called.

        Raises:
            CollectiveMismatch: On every rank, if others call another operation.

        Collective:
            Every rank must call.
        """
        self.agree("wait_for_everyone")
