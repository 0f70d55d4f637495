"""Exchange through torch's default process group."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, final

from accel_state.transports._base import Reduction, Transport

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

#: bytes of the first message of an object
FRONT = 1 << 12

#: bytes of an exchange that may be kept until others follow
KEPT = 1 << 16


@final
class TorchDist(Transport):
    """The default process group of torch.distributed, which must be open."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._dist = torch.distributed
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        # renamed in torch 2.13, where the old name warns
        names = vars(torch.distributed)
        self._all_gather_tensor = names.get("all_gather_single") or names["all_gather_into_tensor"]
        op = torch.distributed.ReduceOp
        self._finished: deque[Any] = deque(maxlen=64)
        # gloo has no average: sum and divide
        self._ops: dict[Reduction, Any] = {"sum": op.SUM, "mean": op.SUM, "max": op.MAX, "min": op.MIN}

    def __reduce__(self) -> tuple[type[TorchDist], tuple[()]]:
        return TorchDist, ()  # what is pickled with it joins the group of the process that unpickles it

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`, concatenated in rank order; a 0-d `x` gives a vector of `size`.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        x = x.detach().contiguous()
        if x.ndim == 0:
            x = x.unsqueeze(0)
        out = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        if out.numel():
            self._finish(self._all_gather_tensor(out, x, async_op=True), out)
        return out

    def all_reduce(self, x: torch.Tensor, how: Reduction) -> torch.Tensor:
        """A new tensor, the same on every rank; a mean of whole numbers is a float.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().clone(memory_format=self._torch.contiguous_format)
        self._finish(self._dist.all_reduce(y, op=self._ops[how], async_op=True), y)
        return y / self.size if how == "mean" else y

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """`x` of rank `source`, on every rank.

        Collective: every rank of the group must call, with equal shapes and dtypes.
        """
        y = x.detach().contiguous()
        self._finish(self._dist.broadcast(y, src=source, async_op=True), y)
        return y

    def all_gather_objects(self, value: T) -> list[T]:
        """Every rank's `value`, in rank order; pickled on the way.

        Collective: every rank of the group must call.
        """
        packed = self._packed(value)
        sizes = self.all_gather(self._torch.tensor([packed.numel()])).tolist()
        row = packed.new_zeros((1, max(sizes)))
        row[0, : packed.numel()] = packed
        rows = self.all_gather(row)
        return [_unpacked(rows[rank, :size]) for rank, size in enumerate(sizes)]

    def broadcast_object(self, value: T, source: int) -> T:
        """The `value` of rank `source`; pickled on the way.

        Collective: every rank of the group must call.
        """
        # the length and the front of the value travel together: most values need no second message
        front = self._torch.zeros(FRONT, dtype=self._torch.uint8)
        packed = self._packed(value) if self.rank == source else front[:0]
        if self.rank == source:
            front[:8] = self._torch.frombuffer(bytearray(packed.numel().to_bytes(8, "little")), dtype=self._torch.uint8)
            front[8 : 8 + packed.numel()] = packed[: FRONT - 8]
        front = self.broadcast(front, source)
        size = int.from_bytes(ctypes.string_at(front.data_ptr(), 8), "little")
        rest = packed[FRONT - 8 :] if self.rank == source else front.new_empty(max(size - FRONT + 8, 0))
        if size > FRONT - 8:
            rest = self.broadcast(rest, source)
        if self.rank == source:
            return value
        received: T = _unpacked(self._torch.cat([front[8 : 8 + size], rest]))
        return received

    def barrier(self) -> None:
        """Returns when every rank has called. Collective: every rank of the group must call."""
        self._dist.barrier()

    def _packed(self, value: object) -> torch.Tensor:
        from accel_state.transports import wire

        return self._torch.frombuffer(bytearray(wire.pack(value)), dtype=self._torch.uint8)

    def _finish(self, work: Any, received: torch.Tensor) -> None:
        # A thread of gloo reports a collective as done before it lets go of it. If it is the last to hold the tensors
        # it asks for the interpreter to free them; and where the main thread forks just then, to start a loader's
        # workers, the child hangs for ever in CPython before 3.11.10 (python/cpython#112275). So be the last here.
        work.wait()
        if received.device.type == "cpu":
            if received.nbytes <= KEPT:
                self._finished.append(work)
            else:
                time.sleep(0.001)


def _unpacked(packed: torch.Tensor) -> Any:
    from accel_state.transports import wire

    return wire.unpack(ctypes.string_at(packed.data_ptr(), packed.numel()))
