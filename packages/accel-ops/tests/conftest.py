"""Ranks that are threads of the test's own process: a transport that counts, and that refuses what would hang."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import pytest
import torch
from accel_comm import CollectiveMismatch, Reduction, Transport, call_site
from accel_comm.transports import serialization
from accel_comm.transports._base import ROOM, Join, PointToPoint, longest_of
from accel_comm.transports.votes import AgreedVotes, Votes
from accel_testing import stretched

T = TypeVar("T")
COMBINED: dict[Reduction, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class Meeting:
    """Where the threads put what they bring, and see what all have brought."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.barrier = threading.Barrier(size, timeout=stretched(timeout_s))
        self.brought: list[Any] = [None] * size

    def exchanged(self, rank: int, value: T) -> list[T]:
        """The values of all ranks."""
        self.brought[rank] = value
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


@final
class Loopback(Transport):
    """The transport of one thread; `calls` has the name of every message."""

    def __init__(self, rank: int, size: int, meeting: Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting
        self.calls: list[str] = []
        self.inline_bytes = ROOM
        self.point_to_point = LoopbackPairs(self)

    def _met(self, kind: str, what: str, value: T) -> list[T]:
        self.calls.append(kind)
        found = self._meeting.exchanged(self.rank, (kind, what, call_site(), value))
        assert len({one[0] for one in found}) == 1, f"these wait for each other for ever: {found}"
        if len({one[1] for one in found}) > 1:
            rows = "".join(f"\n  rank {rank}: {one[1]} at {one[2]}" for rank, one in enumerate(found))
            text = f"ranks called different operations at the same time:{rows}\ncall the same on every rank"
            raise CollectiveMismatch(text)
        return [one[3] for one in found]

    def _alike(self, kind: str, x: torch.Tensor) -> list[torch.Tensor]:
        """Copies of all ranks' tensors; torch's own operations mix up bytes, or abort, where these differ."""
        mine = x.detach().clone(memory_format=torch.contiguous_format)
        found = self._met(kind, kind, mine)
        assert len({(one.shape, one.dtype) for one in found}) == 1, f"{kind} of tensors that differ: {found}"
        return found

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        return self._met("exchange", what, payload)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._alike("all_gather", x if x.ndim else x.unsqueeze(0)))

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        first, *others = self._alike(f"all_reduce ({how})", x)
        whole = first.clone()
        for other in others:
            whole = COMBINED[how](whole, other)
        return whole / self.size if how == "mean" else whole

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        return self._alike(f"broadcast (from rank {source})", x)[source].clone()

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        sent, start = self.exchange(what, about + part), len(about)
        return [payload[start:] for payload in sent] if all(one.startswith(about) for one in sent) else None

    def skip(self, what: str) -> None:
        pass

    def votes(self, what: str) -> Votes:
        return AgreedVotes(what, self)

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        return [serialization.unpack(payload) for payload in self.exchange(what, serialization.pack(value))]

    def close(self) -> None:
        """Nobody waits for it."""

    @property
    def world(self) -> Transport:
        return self

    def broadcast_object(self, value: T, source: int) -> T:
        return self._met("broadcast_object", f"broadcast_object (from rank {source})", value)[source]


@final
class LoopbackPairs(PointToPoint):
    """The messages of one thread to each of the others."""

    inline_bytes = ROOM

    def __init__(self, transport: Loopback) -> None:
        self._transport = transport

    def supports_device(self, kind: str) -> bool:
        return False

    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        raise NotImplementedError

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        return self._transport._met("scatter", what, payloads)[source][self._transport.rank]

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        copies = [[tensor.clone() for tensor in tensors] for tensors in sent]
        mine = self._transport._met("scatter_tensors", what, copies)[source][self._transport.rank]
        for tensor, numbers in zip(received, mine if self._transport.rank != source else (), strict=True):
            assert (tensor.shape, tensor.dtype) == (numbers.shape, numbers.dtype)
            tensor.copy_(numbers)


def loopback(size: int, timeout_s: float = 10) -> list[Loopback]:
    """The transports of `size` threads of this process, each for one thread."""
    meeting = Meeting(size, timeout_s)
    return [Loopback(rank, size, meeting) for rank in range(size)]


def run_loopback(size: int, function: Callable[..., T], *args: Any) -> list[T]:
    """The results of `function(transport, *args)` in `size` threads, in rank order.

    Raises: the first error of a thread; the others then wait no longer.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def live(transport: Loopback) -> None:
        try:
            results[transport.rank] = function(transport, *args)
        except BaseException as error:  # noqa: BLE001 - whatever a thread raises is the test's to see
            errors.append(error)
            transport._meeting.barrier.abort()

    threads = [threading.Thread(target=live, args=(one,), daemon=True) for one in loopback(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
    return [results[rank] for rank in range(size)]


@pytest.fixture(scope="session", name="loopback")
def fixture_loopback() -> Callable[..., list[Any]]:
    """`loopback(size, function, *args)`: the results of `function(transport, *args)` on ranks that are threads."""
    return run_loopback
