"""Wait for a collective of torch: until it is over, and no thread of gloo holds its tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.device_work import work_of
from accel_comm.transports.peer_errors import PeerErrors

if TYPE_CHECKING:
    import torch

#: bytes of an exchange that may be kept until others follow
KEPT = 1 << 16

#: seconds to wait at most until gloo lets go of a larger one; it takes some 0.05 ms
LONGEST_S = 0.05


@final
class CollectiveWork:
    """The collectives of a process.

    Args:
        rank: Rank of this process.
        size: Number of ranks.
        recorder: Flight recorder of this process.
        errors: Errors of an exchange that another process has left.
    """

    def __init__(self, rank: int, size: int, recorder: FlightRecorder, errors: PeerErrors) -> None:
        self._rank, self._size, self._recorder, self._errors = rank, size, recorder, errors
        self._finished: deque[Any] = deque(maxlen=64)

    def finish(self, begin: Callable[..., Any], received: torch.Tensor, *others: Any) -> None:
        """Run a collective that the recorder has noted, until it is over and no thread holds its tensors any more.

        Args:
            begin: Function of `torch.distributed`.
            received: Its first argument, a tensor.
            *others: Its other arguments.
        """
        done: Callable[[], bool] | None = None
        try:
            done = self._run(begin, received, *others)
        finally:
            self._recorder.end(done)

    def gather(self, row: bytes, target: int) -> list[torch.Tensor]:
        """Return the rows of all ranks, of one length, on one rank, and nothing on the others."""
        import torch
        import torch.distributed as dist

        mine = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        # no views of one tensor, which would hold it
        rows = [torch.empty_like(mine) for _ in range(self._size)] if self._rank == target else None
        self._run(dist.gather, mine, rows, target)
        return rows or []

    def _run(self, begin: Callable[..., Any], received: torch.Tensor, *others: Any) -> Callable[[], bool] | None:
        """Run a collective, and return the function that tells whether a device has done it, if one continues."""
        import torch

        with self._errors.translated():
            work = begin(received, *others, async_op=True)
            work.wait()
            if received.device.type == "xla":
                return None  # a part of the graph, which has no stream
            if received.device.type != "cpu":
                # NCCL has only queued it. Its work would hold the tensors until it is asked; an event does not.
                return work_of(torch.accelerator.current_stream(received.device))
        # A thread of gloo reports a collective as done before it lets go of it. If it is the last to hold the tensors
        # it asks for the interpreter to free them; and where the main thread forks just then, to start a loader's
        # workers, the child hangs for ever in CPython before 3.11.10 (python/cpython#112275). So be the last here.
        given = [one for value in (received, *others) for one in (value if isinstance(value, list) else [value])]
        held = [one for one in given if isinstance(one, torch.Tensor)]
        if sum(one.nbytes for one in held) <= KEPT:
            self._finished.append(work)
            return None
        del work
        until = time.monotonic() + LONGEST_S
        while any(_holders(tensor) > 1 for tensor in held) and time.monotonic() < until:
            time.sleep(0)
        return None


def _holders(x: Any) -> int:
    return int(x._use_count())
