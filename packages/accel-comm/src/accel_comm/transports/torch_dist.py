"""Exchange through torch's default process group."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_comm.errors import NoRun
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.process_group import GroupOptions, limit_of_open_group
from accel_comm.status_store import StatusStore
from accel_comm.transports import serialization
from accel_comm.transports._base import Join, Reduction, Transport, longest_of
from accel_comm.transports.agreement import BLOCK, Agreement, SharedMemoryAgreement, TreeAgreement
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.collective_work import CollectiveWork
from accel_comm.transports.header import Header, header, require_one_call, unpacked
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.point_to_point import TorchPointToPoint
from accel_comm.transports.posted_votes import PostedVotes
from accel_comm.transports.shared_memory import SharedMemoryChannel, map_shared_memory
from accel_comm.transports.shared_votes import SharedMemoryVotes
from accel_comm.transports.votes import Votes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: bytes of all ranks' payloads up to which they go up and down the tree
TOGETHER = 1 << 20


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open.

    Args:
        recorder: Flight recorder of this process.
        store: Notes of the ranks; without them, errors name no rank, and ranks share no memory.
        share_memory: Whether small messages are sent through memory, if all ranks can share it.
        device: Kind of the device that ranks compute on, which they connect before one of them sends to another.
    """

    def __init__(
        self,
        recorder: FlightRecorder | None = None,
        store: StatusStore | None = None,
        *,
        share_memory: bool = False,
        device: str = "cpu",
    ) -> None:
        import torch
        import torch.distributed

        self._torch, self._dist = torch, torch.distributed
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.recorder = recorder or FlightRecorder()
        self._errors = PeerErrors(self.rank, self.recorder, store)
        self._work = CollectiveWork(self.rank, self.size, self.recorder, self._errors)
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._gathering: Callable[..., Any] = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}
        warns = self.rank == 0
        self._tree = BinomialTree(self.rank, self.size, BLOCK)
        self._on_tree = TreeAgreement(self._tree, self.size, self.recorder, self._errors, warns=warns)
        self._agreement: Agreement = self._on_tree
        self._channel = self._open_channel(store, wanted=share_memory) if store is not None else None
        if self._channel is not None:
            self._agreement = SharedMemoryAgreement(self._channel, self.size, self.recorder, warns=warns)
        self.inline_bytes = self._agreement.room
        self._pairs = TorchPointToPoint(self.rank, self.recorder, self._errors, self._work, self._channel, device)
        self.point_to_point = self._pairs
        if store is not None:
            _open.append(self)

    def _open_channel(self, store: StatusStore, *, wanted: bool) -> SharedMemoryChannel | None:
        """Return the memory that all ranks share, or None if a rank has or wants none."""
        tell = functools.partial(self.all_gather_objects, what="shared memory")
        memory = map_shared_memory(self.rank, self.size, store.host, tell, wanted=wanted)
        with suppress(RuntimeError):
            store.remember_all()  # the store may go before they do
        if memory is None:
            return None
        limit = (limit_of_open_group() or GroupOptions().limit).total_seconds()
        return SharedMemoryChannel(memory, store, self.size, limit_s=limit, lost=self._errors.error)

    @property
    def world(self) -> Transport:
        return self

    def __reduce__(self) -> tuple[Callable[[], TorchDist], tuple[()]]:
        return _of_this_process, ()  # what is pickled with it joins the group of the process that unpickles it

    def close(self) -> None:
        _open[:] = [transport for transport in _open if transport is not self]
        if self._channel is not None:
            self._channel.close()
            self._channel = self._pairs.channel = None

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        payloads, longest = self._agreement.gather(what, payload)
        return list(payloads) or self._rows(payload, longest)

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        return self._agreement.agree(what, about, part, join)

    def skip(self, what: str) -> None:
        self.recorder.skip(what)

    def votes(self, what: str) -> Votes:
        if self._channel is None:
            return PostedVotes(what, self._on_tree, self.recorder)
        return SharedMemoryVotes(what, self._channel, self.recorder, functools.partial(self.agree, f"{what} (vote)"))

    def _rows(self, payload: bytes, longest: int) -> list[bytes]:
        """Return the payloads of all ranks, of which the longest has so many bytes."""
        row = len(payload).to_bytes(8, "little") + payload.ljust(longest, b"\0")
        if len(row) * self.size <= TOGETHER:
            self.recorder.begin("all_gather", f"{len(row)} bytes")
            try:
                with self._errors.translated():
                    rows = self._tree.gather(row)
            finally:
                self.recorder.end()
        else:
            rows_of_all = self.all_gather(self._torch.frombuffer(bytearray(row), dtype=self._torch.uint8))
            start, length = rows_of_all.data_ptr(), len(row)
            rows = [ctypes.string_at(start + rank * length, length) for rank in range(self.size)]
        return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows]

    def send(self, what: str, payload: bytes, source: int) -> bytes:
        """Return the payload of rank `source`, which hears nothing of the others.

        Args:
            what: Name of the operation, for error messages.
            payload: Payload of this rank, of any length.
            source: Rank that sends.

        Raises:
            CollectiveMismatch: On a rank whose `what` is not the source's.

        Collective:
            Every rank must call.
        """
        is_source, length = self.rank == source, len(payload)
        room = self.inline_bytes
        mine = header(
            what, self.recorder.begin(what), part=payload if is_source and length <= room else b"", longest=length
        )
        theirs = self._header_of(mine, source)
        if not is_source:
            require_one_call((theirs, mine), (source, self.rank))
            length = theirs.longest
        if length <= room:
            return theirs.part
        rest = self._torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=self._torch.uint8)
        rest = self.broadcast(rest, source)
        return ctypes.string_at(rest.data_ptr(), rest.numel())

    def _header_of(self, mine: Header, source: int) -> Header:
        if self._channel is None:
            block = bytearray(mine.packed().ljust(BLOCK, b"\0"))
            self._work.finish(self._dist.broadcast, self._torch.frombuffer(block, dtype=self._torch.uint8), source)
            return unpacked(bytes(block))
        try:
            return unpacked(self._channel.hear(mine.packed(), source))
        finally:
            self.recorder.end()

    def all_gather_objects(self, value: T, what: str = "all_gather_objects") -> list[T]:
        return [serialization.unpack(payload) for payload in self.exchange(what, serialization.pack(value))]

    def broadcast_object(self, value: T, source: int) -> T:
        is_source = self.rank == source
        sent = self.send(
            f"broadcast_object (from rank {source})", serialization.pack(value) if is_source else b"", source
        )
        return value if is_source else serialization.unpack(sent)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().contiguous()
        if x.ndim == 0:
            x = x.unsqueeze(0)
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        if out.numel():
            self.recorder.begin("all_gather", _described(x))
            self._work.finish(self._gathering, out, x)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        y = x.detach().clone(memory_format=self._torch.contiguous_format)
        self.recorder.begin(f"all_reduce ({how})", _described(y))
        self._work.finish(self._dist.all_reduce, y, self._ops[how])
        return y / self.size if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        x = x.detach().contiguous()
        self.recorder.begin(f"broadcast (from rank {source})", _described(x))
        y = x.clone() if self.rank == source else self._torch.empty_like(x)
        self._work.finish(self._dist.broadcast, y, source)
        return y


#: those of the run of this process, the newest last
_open: list[TorchDist] = []


def _of_this_process() -> TorchDist:
    import torch.distributed

    if not _open and not torch.distributed.is_initialized():
        raise NoRun("this exchanges with other processes, and there is no run; create an Accelerator first")
    return _open[-1] if _open else TorchDist()


def _described(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
