"""Exchange through torch's default process group."""

from __future__ import annotations

import ctypes
import logging
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_state.errors import NoRun
from accel_state.flight_recorder import FlightRecorder
from accel_state.process_group import GroupOptions, limit_of_open_group
from accel_state.status_store import StatusStore
from accel_state.transports import agreement_block, header
from accel_state.transports._base import Join, Reduction, Transport, longest_of
from accel_state.transports.agreement import Agreement
from accel_state.transports.call_site_warning import CallSiteWarning
from accel_state.transports.ordered_section import OrderedSection
from accel_state.transports.peer_errors import PeerErrors
from accel_state.transports.shared_memory import LONGEST, SharedMemoryChannel

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
logger = logging.getLogger("accel")

#: bytes of the first message of an object that one rank sends
FIRST = 1 << 12

#: bytes of all ranks' payloads up to which they go up and down the tree
TOGETHER = 1 << 20

#: bytes of an exchange that may be kept until others follow
KEPT = 1 << 16

#: seconds that the watchdog has to end this process, once it was diagnosed
ENDING_S = 2.0

#: seconds to wait at most until gloo lets go of a larger one; it takes some 0.05 ms
LONGEST_S = 0.05


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open."""

    def __init__(
        self,
        recorder: FlightRecorder | None = None,
        store: StatusStore | None = None,
        *,
        memory: mmap.mmap | None = None,
    ) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._dist = torch.distributed
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        self.recorder = recorder or FlightRecorder()
        self._sections = OrderedSection(store) if store is not None else None
        self._lost = PeerErrors(self.rank, self.size, self.recorder, self._sections)
        self._lines = CallSiteWarning(self.rank)
        self._agreement = Agreement(self.rank, self.size, self.recorder, self._lost, self._lines)
        self._channel: SharedMemoryChannel | None = None
        if store is not None and memory is not None:
            limit = (limit_of_open_group() or GroupOptions().limit).total_seconds()
            self._channel = SharedMemoryChannel(memory, store, self.size, limit_s=limit, lost=self._lost.error)
        self._ranks = range(self.size)
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._gathering: Callable[..., Any] = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        self._sites: dict[int, str] = {}
        self._finished: deque[Any] = deque(maxlen=64)
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}
        if store is not None:
            _open.append(self)

    def __reduce__(self) -> tuple[Callable[[], TorchDist], tuple[()]]:
        return _of_this_process, ()  # what is pickled with it joins the group of the process that unpickles it

    def close(self) -> None:
        """Tells the others that this rank exchanges nothing any more."""
        _open[:] = [one for one in _open if one is not self]
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """Every rank's payload, in rank order; one message where all are small, two otherwise.

        Raises: CollectiveMismatch on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        if self._channel is None:
            return self._by_group(what, payload)
        headers = header.read(self._by_channel(self._channel, what, payload), self._ranks)
        self._lines.warn(headers.apart)
        return self._rows(payload, max(headers.lengths)) if headers.payloads is None else headers.payloads

    @property
    def room(self) -> int:
        """Bytes of a part that travels with `agree`, at most."""
        return super().room if self._channel is not None else agreement_block.ROOM

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """The ranks' parts in rank order, or what `join` made of them; None on all if `about` differs on one.

        Raises: CollectiveMismatch on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        if self._channel is not None:
            return super().agree(what, about, part, join)
        said = self._agreement.of(what, about, part, join)
        return None if said.verdict else [said.part]

    def _by_channel(self, channel: SharedMemoryChannel, what: str, payload: bytes) -> list[bytes]:
        mine = header.write(what, self.recorder.begin(what), payload, LONGEST)
        try:
            channel.post(mine)
            found = [mine if rank == self.rank else channel.read(rank) for rank in self._ranks]
            channel.done()
        finally:
            self.recorder.end()
        return found

    def _by_group(self, what: str, payload: bytes) -> list[bytes]:
        share = agreement_block.ROOM // self.size - 2
        part = agreement_block.with_length(payload) if len(payload) <= share else b""
        said = self._agreement.of(what, part=part, join=b"".join, longest=len(payload))
        if said.longest <= share:
            return agreement_block.without_lengths(said.part)
        return self._rows(payload, said.longest) if said.longest else [b""] * self.size

    def _rows(self, payload: bytes, longest: int) -> list[bytes]:
        """The payloads of all ranks, of which the longest has so many bytes."""
        row = len(payload).to_bytes(8, "little") + payload.ljust(longest, b"\0")
        if len(row) * self.size <= TOGETHER:
            rows = self._agreement.all_gather(row)
        else:
            whole = self.all_gather(self._torch.frombuffer(bytearray(row), dtype=self._torch.uint8))
            start, length = whole.data_ptr(), len(row)
            rows = [ctypes.string_at(start + rank * length, length) for rank in self._ranks]
        return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in rows]

    def send(self, what: str, payload: bytes, source: int) -> bytes:
        """The payload of rank `source`, which hears nothing back; one message where it is small, two otherwise.

        Raises: CollectiveMismatch on a rank whose `what` is not the source's.
        Collective: every rank of the group must call.
        """
        site, channel, here = self.recorder.begin(what), self._channel, self.rank == source
        length = LONGEST if channel is not None else FIRST
        mine = header.write(what, site, payload if here else b"", length)
        if channel is not None:
            try:
                channel.post(mine)
                theirs = mine if here else channel.read(source)
                channel.done()
            finally:
                self.recorder.end()
        else:
            first = bytearray(mine.ljust(length, b"\0"))
            self._finish(self._dist.broadcast, self._torch.frombuffer(first, dtype=self._torch.uint8), source)
            theirs = bytes(first)
        length = len(payload)
        if here and len(mine) > length:  # the payload is in it
            return payload
        if not here:
            said = header.read((theirs, mine), (source, self.rank))
            if said.payloads is not None:
                return said.payloads[0]
            length = said.lengths[0]
        rest = self._torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=self._torch.uint8)
        rest = self.broadcast(rest, source)
        return ctypes.string_at(rest.data_ptr(), rest.numel())

    def begin_section(self) -> int:
        """Begins this rank's turn: its number."""
        if self._sections is None:
            return super().begin_section()
        self._sites[turn := self._sections.begin()] = self.recorder.begin("main_process_first", patient=True)
        self.recorder.end()
        return turn

    def end_section(self, turn: int, failure: str | None) -> None:
        """Lets the ranks go on that wait for this one's turn to end; where there is no store, a collective."""
        if self._sections is None:
            super().end_section(turn, failure)
        else:
            self._sections.end(turn, self._sites.pop(turn), failure)

    def await_section(self, first: int) -> str | None:
        """Returns when the turn of rank `first` has ended: why it failed, or None.

        Raises: PeerFailed when that process is gone.
        """
        if self._sections is None:
            return super().await_section(first)
        site = self.recorder.begin(f"main_process_first (after rank {first})", patient=True)
        try:
            return self._sections.wait(first, site)
        finally:
            self.recorder.end()

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

    def _finish(
        self, begin: Callable[..., Any], received: torch.Tensor, *others: Any, meanwhile: Callable[[], Any] = int
    ) -> None:
        """Begins the collective, and returns when it is over and nobody else holds what was exchanged."""
        try:
            work = begin(received, *others, async_op=True)
            meanwhile()
            work.wait()
        except RuntimeError as error:
            raise self._lost.translated(error) from None  # what gloo says is in the words
        finally:
            self.recorder.end()
        # A thread of gloo reports a collective as done before it lets go of it. If it is the last to hold the tensors
        # it asks for the interpreter to free them; and where the main thread forks just then, to start a loader's
        # workers, the child hangs for ever in CPython before 3.11.10 (python/cpython#112275). So be the last here.
        if received.device.type == "cpu":
            if received.nbytes <= KEPT:
                self._finished.append(work)
                return
            del work
            until = time.monotonic() + LONGEST_S
            held = [one for one in (received, *others) if isinstance(one, self._torch.Tensor)]
            while any(_holders(one) > 1 for one in held) and time.monotonic() < until:
                time.sleep(0)


#: those of the run of this process, the newest last
_open: list[TorchDist] = []


def _of_this_process() -> TorchDist:
    import torch.distributed

    if not _open and not torch.distributed.is_initialized():
        raise NoRun(
            "what came here exchanges with other processes, and this one has no run; create an Accelerator first"
        )
    return _open[-1] if _open else TorchDist()


def _holders(x: Any) -> int:
    return int(x._use_count())


def _described(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
