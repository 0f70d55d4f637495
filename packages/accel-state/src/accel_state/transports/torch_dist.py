"""Exchange through torch's default process group."""

from __future__ import annotations

import ctypes
import logging
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_state.board import Board
from accel_state.errors import NoRun
from accel_state.journal import Journal
from accel_state.process_group import GroupOptions, limit_of_open_group
from accel_state.transports import _block, _front
from accel_state.transports._agreement import Agreement
from accel_state.transports._base import Join, Reduction, Transport, longest_of
from accel_state.transports._lost_peer import LostPeer
from accel_state.transports._mailbox import LONGEST, Mailbox
from accel_state.transports._other_lines import OtherLines
from accel_state.transports._turns import Turns

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
logger = logging.getLogger("accel")

#: bytes of the first message of an object that one rank sends
FRONT = 1 << 12

#: bytes of all ranks' payloads up to which they go up and down the tree
TOGETHER = 1 << 20

#: bytes of an exchange that may be kept until others follow
KEPT = 1 << 16

#: seconds that the watch has to end this process, once it was judged
ENDING_S = 2.0

#: seconds to wait at most until gloo lets go of a larger one; it takes some 0.05 ms
LONGEST_S = 0.05


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open."""

    def __init__(
        self, journal: Journal | None = None, board: Board | None = None, *, memory: mmap.mmap | None = None
    ) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._dist = torch.distributed
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        self.journal = journal or Journal()
        self._turns = Turns(board) if board is not None else None
        self._lost = LostPeer(self.rank, self.size, self.journal, self._turns)
        self._lines = OtherLines(self.rank)
        self._agreement = Agreement(self.rank, self.size, self.journal, self._lost, self._lines)
        self._mailbox: Mailbox | None = None
        if board is not None and memory is not None:
            limit = (limit_of_open_group() or GroupOptions().limit).total_seconds()
            self._mailbox = Mailbox(memory, board, self.size, limit_s=limit, lost=self._lost.error)
        self._ranks = range(self.size)
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._gathering: Callable[..., Any] = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        self._sites: dict[int, str] = {}
        self._finished: deque[Any] = deque(maxlen=64)
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}
        if board is not None:
            _open.append(self)

    def __reduce__(self) -> tuple[Callable[[], TorchDist], tuple[()]]:
        return _of_this_process, ()  # what is pickled with it joins the group of the process that unpickles it

    def close(self) -> None:
        """Tells the others that this rank exchanges nothing any more."""
        _open[:] = [one for one in _open if one is not self]
        box, self._mailbox = self._mailbox, None
        if box is not None:
            box.close()

    def exchange(self, what: str, payload: bytes = b"") -> list[bytes]:
        """Every rank's payload, in rank order; one message where all are small, two otherwise.

        Raises: CollectiveMismatch on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        if self._mailbox is None:
            return self._by_group(what, payload)
        fronts = _front.read(self._by_mailbox(self._mailbox, what, payload), self._ranks)
        self._lines.warn(fronts.apart)
        return self._rows(payload, max(fronts.lengths)) if fronts.payloads is None else fronts.payloads

    @property
    def room(self) -> int:
        """Bytes of a part that travels with `agree`, at most."""
        return super().room if self._mailbox is not None else _block.ROOM

    def agree(
        self, what: str, about: bytes = b"", part: bytes = b"", join: Join = longest_of
    ) -> Sequence[bytes] | None:
        """The ranks' parts in rank order, or what `join` made of them; None on all if `about` differs on one.

        Raises: CollectiveMismatch on every rank where `what` is not the same on all.
        Collective: every rank of the group must call.
        """
        if self._mailbox is not None:
            return super().agree(what, about, part, join)
        said = self._agreement.of(what, about, part, join)
        return None if said.verdict else [said.part]

    def _by_mailbox(self, box: Mailbox, what: str, payload: bytes) -> list[bytes]:
        mine = _front.write(what, self.journal.begin(what), payload, LONGEST)
        try:
            box.post(mine)
            found = [mine if rank == self.rank else box.read(rank) for rank in self._ranks]
            box.done()
        finally:
            self.journal.end()
        return found

    def _by_group(self, what: str, payload: bytes) -> list[bytes]:
        share = _block.ROOM // self.size - 2
        part = _block.with_length(payload) if len(payload) <= share else b""
        said = self._agreement.of(what, part=part, join=b"".join, longest=len(payload))
        if said.longest <= share:
            return _block.without_lengths(said.part)
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
        site, box, here = self.journal.begin(what), self._mailbox, self.rank == source
        length = LONGEST if box is not None else FRONT
        mine = _front.write(what, site, payload if here else b"", length)
        if box is not None:
            try:
                box.post(mine)
                theirs = mine if here else box.read(source)
                box.done()
            finally:
                self.journal.end()
        else:
            front = bytearray(mine.ljust(length, b"\0"))
            self._finish(self._dist.broadcast, self._torch.frombuffer(front, dtype=self._torch.uint8), source)
            theirs = bytes(front)
        length = len(payload)
        if here and len(mine) > length:  # the payload is in it
            return payload
        if not here:
            said = _front.read((theirs, mine), (source, self.rank))
            if said.payloads is not None:
                return said.payloads[0]
            length = said.lengths[0]
        rest = self._torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=self._torch.uint8)
        rest = self.broadcast(rest, source)
        return ctypes.string_at(rest.data_ptr(), rest.numel())

    def begin_turn(self) -> int:
        """Begins this rank's turn: its number."""
        if self._turns is None:
            return super().begin_turn()
        self._sites[turn := self._turns.begin()] = self.journal.begin("main_process_first", patient=True)
        self.journal.end()
        return turn

    def end_turn(self, turn: int, failure: str | None) -> None:
        """Lets the ranks go on that wait for this one's turn to end; where there is no store, a collective."""
        if self._turns is None:
            super().end_turn(turn, failure)
        else:
            self._turns.end(turn, self._sites.pop(turn), failure)

    def await_turn(self, first: int) -> str | None:
        """Returns when the turn of rank `first` has ended: why it failed, or None.

        Raises: PeerFailed when that process is gone.
        """
        if self._turns is None:
            return super().await_turn(first)
        site = self.journal.begin(f"main_process_first (after rank {first})", patient=True)
        try:
            return self._turns.wait(first, site)
        finally:
            self.journal.end()

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order; a 0-d `x` gives a vector of `size`.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        if x.ndim == 0:
            x = x.unsqueeze(0)
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        if out.numel():
            self.journal.begin("all_gather", _described(x))
            self._finish(self._gathering, out, x)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank; a mean of whole numbers is a float.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().clone(memory_format=self._torch.contiguous_format)
        self.journal.begin(f"all_reduce ({how})", _described(y))
        self._finish(self._dist.all_reduce, y, self._ops[how])
        return y / self.size if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """A new tensor with the numbers of rank `source`, on every rank.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        self.journal.begin(f"broadcast (from rank {source})", _described(x))
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
            self.journal.end()
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
