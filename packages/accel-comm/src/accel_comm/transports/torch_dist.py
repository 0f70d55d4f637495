"""Exchange through torch's default process group."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

from accel_comm.errors import NoRun
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.process_group import GroupOptions, limit_of_open_group
from accel_comm.status_store import StatusStore
from accel_comm.transports._base import Join, Reduction, Transport, longest_of
from accel_comm.transports.agreement import BLOCK, Agreement, SharedMemoryAgreement, TreeAgreement
from accel_comm.transports.binomial_tree import BinomialTree
from accel_comm.transports.collective_work import CollectiveWork
from accel_comm.transports.header import BARE, Header, header, require_one_call, unpacked
from accel_comm.transports.ordered_section import OrderedSection
from accel_comm.transports.peer_errors import PeerErrors
from accel_comm.transports.point_to_point import PointToPoint
from accel_comm.transports.shared_memory import LONGEST, SharedMemoryChannel, map_shared_memory
from accel_comm.transports.shared_votes import VoteCount, votes_of
from accel_comm.transports.votes import Votes

if TYPE_CHECKING:
    import torch

#: bytes of all ranks' payloads up to which they go up and down the tree
TOGETHER = 1 << 20


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open."""

    def __init__(
        self,
        recorder: FlightRecorder | None = None,
        store: StatusStore | None = None,
        *,
        share_memory: bool = False,
    ) -> None:
        import torch
        import torch.distributed

        self._torch, self._dist = torch, torch.distributed
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.recorder, self._vote_count = recorder or FlightRecorder(), VoteCount()
        self._section = OrderedSection(store) if store is not None else None
        self._errors = PeerErrors(self.rank, self.size, self.recorder, store)
        self._finish = CollectiveWork(self.recorder, self._errors).finish
        self._tree = BinomialTree(self.rank, self.size, BLOCK)
        self._pairs = PointToPoint(self.rank, self.recorder, self._errors)
        warns = self.rank == 0
        self._agreement: Agreement = TreeAgreement(self._tree, self.size, self.recorder, self._errors, warns=warns)
        self._channel: SharedMemoryChannel | None = None
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._gathering: Callable[..., Any] = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}
        if store is None:
            return
        _open.append(self)
        tell = functools.partial(self.all_gather_objects, what="shared memory")
        memory = map_shared_memory(self.rank, self.size, store.host, tell, wanted=share_memory)
        if memory is not None:
            with suppress(RuntimeError):
                store.all_alive(range(self.size))  # remembers their processes, should the store go before they do
            limit = (limit_of_open_group() or GroupOptions().limit).total_seconds()
            self._channel = SharedMemoryChannel(memory, store, self.size, limit_s=limit, lost=self._errors.error)
            self._pairs.channel = self._channel
            self._agreement = SharedMemoryAgreement(self._channel, self.size, self.recorder, warns=warns)

    def __reduce__(self) -> tuple[Callable[[], TorchDist], tuple[()]]:
        return _of_this_process, ()  # what is pickled with it joins the group of the process that unpickles it

    def close(self) -> None:
        """Tells the others that this rank exchanges nothing any more."""
        _open[:] = [transport for transport in _open if transport is not self]
        if self._channel is not None:
            self._channel.close()
            self._channel = self._pairs.channel = None

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """Every rank's payload, in rank order; one message if all are small, two otherwise.

        Raises: CollectiveMismatch on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        payloads, longest = self._agreement.gather(what, payload)
        return payloads or self._rows(payload, longest)

    @property
    def room(self) -> int:
        """Bytes of a part that travels with `agree`, at most."""
        return self._agreement.room

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """The ranks' parts in rank order, or fewer that `join` made of them; None on all ranks if `about` differs.

        Raises: CollectiveMismatch on every rank if `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        return self._agreement.agree(what, about, part, join)

    def votes(self, what: str) -> Votes:
        """A new series of votes of all ranks. Collective: every rank of the group must begin the same series."""
        return votes_of(what, self, self._channel, self._vote_count)

    def _rows(self, payload: bytes, longest: int) -> list[bytes]:
        """The payloads of all ranks, of which the longest has so many bytes."""
        row = len(payload).to_bytes(8, "little") + payload.ljust(longest, b"\0")
        if len(row) * self.size <= TOGETHER:
            self.recorder.begin("all_gather", f"{len(row)} bytes")
            try:
                with self._errors.translated():
                    rows = self._tree.all_gather(row)
            finally:
                self.recorder.end()
        else:
            rows_of_all = self.all_gather(self._torch.frombuffer(bytearray(row), dtype=self._torch.uint8))
            start, length = rows_of_all.data_ptr(), len(row)
            rows = [ctypes.string_at(start + rank * length, length) for rank in range(self.size)]
        return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows]

    def send(self, what: str, payload: bytes, source: int) -> bytes:
        """The payload of rank `source`, which receives no answer; one message if it is small, two otherwise.

        Raises: CollectiveMismatch on a rank whose `what` is not the source's.
        Collective: every rank of the group must call.
        """
        is_source, length = self.rank == source, len(payload)
        room = LONGEST - BARE if self._channel is not None else BLOCK - BARE
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

    def gather(self, payload: bytes, lengths: Sequence[int], target: int) -> list[bytes]:
        """The payloads of all ranks in rank order, on rank `target`; none on the others, which wait for nobody.

        Collective: every rank of the group must call, with the `lengths` of all payloads, on which they have agreed.
        """
        row = self._torch.frombuffer(bytearray(payload.ljust(max(lengths), b"\0")), dtype=self._torch.uint8)
        rows = [self._torch.empty_like(row) for _ in lengths] if self.rank == target else None
        self.recorder.begin(f"gather (to rank {target})", _described(row))
        self._finish(self._dist.gather, row, rows, target)
        return [ctypes.string_at(row.data_ptr(), length) for row, length in zip(rows or [], lengths, strict=False)]

    def meet(self, name: str, ranks: Sequence[int], note: object) -> list[Any]:
        """Leaves a note, of what JSON has, in the store, and returns those of these ranks.

        Raises: PeerFailed if a rank is gone. Collective: each of these ranks must call.
        """
        return self._section_of_run().meet(name, ranks, note)

    def agree_apart(self, name: str, ranks: Sequence[int], yes: bool) -> bool:
        """Whether all these ranks say yes, the same on all; through the store, and no collective.

        Raises: PeerFailed if a rank is gone.
        Collective: each of these ranks must call.
        """
        return self._section_of_run().agree(name, ranks, yes)

    @property
    def scatter_room(self) -> int:
        """Bytes of a payload that travels in the first message of `scatter`, at most."""
        return self._pairs.room

    def carries(self, kind: str) -> bool:
        """Whether tensors of devices of this kind travel without a copy on the host."""
        return self._pairs.carries(kind)

    def scatter(self, what: str, payloads: Sequence[bytes], source: int) -> bytes:
        """The payload that rank `source` has for this rank; one message if all are small, two otherwise.

        Raises: CollectiveMismatch on a rank whose `what` is not the source's.
        Collective: every rank of the group must call.
        """
        return self._pairs.scatter(what, payloads, source)

    def scatter_tensors(
        self, what: str, sent: Sequence[Sequence[torch.Tensor]], received: Sequence[torch.Tensor], source: int
    ) -> None:
        """Fills the tensors `received` of each rank with the numbers of those that rank `source` has `sent` to it.

        Collective: every rank of the group must call, with tensors without gaps, alike at both ends.
        """
        self._pairs.scatter_tensors(what, sent, received, source)

    def _header_of(self, mine: Header, source: int) -> Header:
        """The header of rank `source`."""
        if self._channel is None:
            block = bytearray(mine.packed().ljust(BLOCK, b"\0"))
            self._finish(self._dist.broadcast, self._torch.frombuffer(block, dtype=self._torch.uint8), source)
            return unpacked(bytes(block))
        try:
            return unpacked(self._channel.hear(mine.packed(), source))
        finally:
            self.recorder.end()

    @contextmanager
    def ordered_section(self, first: int) -> Iterator[None]:
        """Runs the block on rank `first` before the others; the end of it is a note in the store, and no collective.

        Raises: PeerFailed when that rank fails in the block, or is gone.
        Collective: of each group of ranks, all must enter.
        """
        section = self._section_of_run()
        if self.rank == first:
            site = self.recorder.begin("main_process_first", patient=True)
            self.recorder.end()
            with section.lead(site):
                yield
            return
        site = self.recorder.begin(f"main_process_first (after rank {first})", patient=True)
        try:
            section.wait(first, site)
        finally:
            self.recorder.end()
        yield

    def _section_of_run(self) -> OrderedSection:
        if self._section is None:
            raise NoRun("ranks wait for each other's work in a run; create an Accelerator first")
        return self._section

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order; a 0-d `x` gives a vector of `size`.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        if x.ndim == 0:
            x = x.unsqueeze(0)
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        if out.numel():
            self.recorder.begin("all_gather", _described(x))
            self._finish(self._gathering, out, x)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank; a mean of whole numbers is a float.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().clone(memory_format=self._torch.contiguous_format)
        self.recorder.begin(f"all_reduce ({how})", _described(y))
        self._finish(self._dist.all_reduce, y, self._ops[how])
        return y / self.size if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """A new tensor with the numbers of rank `source`, on every rank.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        self.recorder.begin(f"broadcast (from rank {source})", _described(x))
        y = self._torch.empty_like(x)
        if self.rank == source:
            self._finish(self._dist.broadcast, x, source, meanwhile=lambda: y.copy_(x))
        else:
            self._finish(self._dist.broadcast, y, source)
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
