"""Send data that one rank has for each of the others, or each rank for one."""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, final

from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports._base import PointToPoint
from accel_comm.transports.agreement import BLOCK
from accel_comm.transports.collective_work import CollectiveWork
from accel_comm.transports.device_work import work_of
from accel_comm.transports.header import BARE, Header, header, require_one_call, unpacked
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.shared_memory import SharedMemoryChannel

if TYPE_CHECKING:
    import torch

#: tags of messages: above those of the tree
_TAGS, _FIRST_TAG = 1 << 28, 1 << 30
_LENGTH = 8


@final
class TorchPointToPoint(PointToPoint):
    """The messages between ranks, in memory that they share or by the default process group.

    Args:
        rank: Rank of this process.
        recorder: Flight recorder of this process.
        errors: Errors of an exchange that another process has left.
        work: Collectives of this process.
        channel: Messages in memory that all ranks share; None if they share none.
        device: Kind of the device that ranks compute on.
    """

    def __init__(
        self,
        rank: int,
        recorder: FlightRecorder,
        errors: PeerErrors,
        work: CollectiveWork,
        channel: SharedMemoryChannel | None,
        device: str,
    ) -> None:
        import torch
        import torch.distributed

        self._torch, self._dist = torch, torch.distributed
        self._rank, self._recorder, self._errors, self._work = rank, recorder, errors, work
        self.channel = channel
        #: messages to and from each rank, of which each has a tag: what is left of an interrupted call meets no other
        self._messages = Counter[int]()
        #: the kind of device whose connections are to be made
        self._unconnected: str | None = device

    @cached_property
    def _direct(self) -> set[str]:
        backends = [part.split(":") for part in self._dist.get_backend_config().split(",")]
        # gloo would read the memory of a device as memory of the host
        return {kind for kind, backend in backends if kind != "cpu" and not backend.endswith(("gloo", "mpi"))}

    def supports_device(self, kind: str) -> bool:
        return kind in self._direct

    @property
    def inline_bytes(self) -> int:
        return BLOCK - BARE if self.channel is None else self.channel.section_room

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        room, longest = self.inline_bytes, max(map(len, payloads), default=0)
        parts = payloads if longest <= room else [len(payload).to_bytes(_LENGTH, "little") for payload in payloads]
        site = self._recorder.begin(what)
        try:
            mine, packed = _bare(what, site, longest)
            if self.channel is None:
                theirs, part = self._by_blocks(mine, parts, source)
            else:
                theirs, part = self._by_memory(self.channel, mine, packed, parts, source)
        finally:
            self._recorder.end()
        if theirs.longest <= room:
            return part
        if self._rank == source:
            self.scatter_tensors(what, [self._numbers(bytearray(payload)) for payload in payloads], [], source)
            return payloads[source]
        rest = bytearray(int.from_bytes(part, "little"))
        self.scatter_tensors(what, [], self._numbers(rest), source)
        return bytes(rest)

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        exchanged = [tensor for tensors in sent for tensor in tensors] or received
        on_device = [tensor.device for tensor in exchanged if tensor.device.type in self._direct]
        done: Callable[[], bool] | None = None
        self._recorder.begin(what, f"{sum(tensor.nbytes for tensor in exchanged)} bytes")
        try:
            with self._errors.translated():
                self._connect()
                self._transfer(sent, received, source)
                if on_device:  # NCCL has only queued its messages
                    done = work_of(self._torch.accelerator.current_stream(on_device[0]))
        finally:
            self._recorder.end(done)

    def _connect(self) -> None:
        """Let all ranks make the connections of their devices once, also those for which nothing comes."""
        kind, self._unconnected = self._unconnected, None
        # torch asks for it, at batch_isend_irecv: all ranks have to take part in the first collective of a group
        if kind is not None and self.supports_device(kind):
            self._dist.all_reduce(self._torch.zeros(1, device=kind))

    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        longest = max(lengths)
        self._recorder.begin(f"gather (to rank {target})", f"{longest} bytes")
        try:
            rows = self._work.gather(payload.ljust(longest, b"\0"), target)
        finally:
            self._recorder.end()
        return [ctypes.string_at(row.data_ptr(), length) for row, length in zip(rows, lengths, strict=False)]

    def _transfer(self, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int) -> None:
        sends = self._rank == source
        pairs = [(rank, tensor) for rank, tensors in enumerate(sent) if rank != source for tensor in tensors]
        messages, staged = defaultdict[str, list[Any]](list), list[tuple[Any, Any]]()
        for rank, tensor in pairs if sends else [(source, tensor) for tensor in received]:
            held, kind = tensor, tensor.device.type
            if kind != "cpu" and not self.supports_device(kind):
                held = tensor.cpu() if sends else self._torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                staged.append((tensor, held))
            self._messages[rank] += 1
            tag = _FIRST_TAG + self._messages[rank] % _TAGS
            operation = self._dist.isend if sends else self._dist.irecv
            messages[held.device.type].append(self._dist.P2POp(operation, held, rank, tag=tag))
        # one call for all messages of a device: NCCL sends them side by side
        for work in [work for some in messages.values() for work in self._dist.batch_isend_irecv(some)]:
            work.wait()
        if not sends:
            for tensor, held in staged:
                tensor.copy_(held)

    def _by_memory(
        self, channel: SharedMemoryChannel, mine: Header, packed: bytes, parts: Sequence[bytes], source: int
    ) -> tuple[Header, bytes]:
        """Return the header of the source, and the part for this rank."""
        channel.post(packed, parts)
        try:
            if self._rank == source:
                return mine, parts[source]
            theirs = unpacked(channel.read(source))
            require_one_call((theirs, mine), (source, self._rank))
            return theirs, channel.read_section(source)
        finally:
            channel.done()

    def _by_blocks(self, mine: Header, parts: Sequence[bytes], source: int) -> tuple[Header, bytes]:
        """Return the header of the source, and the part for this rank."""
        with self._errors.translated():
            if self._rank == source:
                blocks = [mine._replace(part=part).packed().ljust(BLOCK, b"\0") for part in parts]
                self._transfer([self._numbers(bytearray(block)) for block in blocks], [], source)
                return mine, parts[source]
            block = bytearray(BLOCK)
            self._transfer([], self._numbers(block), source)
        theirs = unpacked(bytes(block))
        require_one_call((theirs, mine), (source, self._rank))
        return theirs, theirs.part

    def _numbers(self, content: bytearray) -> list[torch.Tensor]:
        """Return the bytes as a tensor in the same memory, or no tensor if there are none."""
        return [self._torch.frombuffer(content, dtype=self._torch.uint8)] if content else []


@lru_cache(64)
def _bare(what: str, site: str, longest: int) -> tuple[Header, bytes]:
    """Return the header of a message that speaks for this rank, and its bytes."""
    mine = header(what, site, longest=longest)
    return mine, mine.packed()
