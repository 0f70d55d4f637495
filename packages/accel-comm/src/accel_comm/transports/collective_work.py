"""The end of a collective of torch: the collective is over, and no thread of gloo holds its tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.device_work import DeviceWork
from accel_comm.transports.peer_errors import PeerErrors

if TYPE_CHECKING:
    import torch

#: bytes of an exchange that may be kept until others follow
KEPT = 1 << 16

#: seconds to wait at most until gloo lets go of a larger one; it takes some 0.05 ms
LONGEST_S = 0.05


@final
class CollectiveWork:
    """The collectives of a process, which have been noted in the recorder."""

    def __init__(self, recorder: FlightRecorder, errors: PeerErrors) -> None:
        self._recorder, self._errors = recorder, errors
        self._finished: deque[Any] = deque(maxlen=64)

    def finish(
        self, begin: Callable[..., Any], received: torch.Tensor, *others: Any, meanwhile: Callable[[], Any] = int
    ) -> None:
        """Begins the collective, and returns when it is over and no thread holds the tensors any more."""
        import torch

        done: Callable[[], bool] | None = None
        try:
            with self._errors.translated():
                work = begin(received, *others, async_op=True)
                meanwhile()
                work.wait()
                if received.device.type != "cpu":
                    # NCCL has only queued it. Its work would hold the tensors until it is asked; an event does not.
                    done = DeviceWork(torch.accelerator.current_stream(received.device)).done
        finally:
            self._recorder.end(done)
        # A thread of gloo reports a collective as done before it lets go of it. If it is the last to hold the tensors
        # it asks for the interpreter to free them; and where the main thread forks just then, to start a loader's
        # workers, the child hangs for ever in CPython before 3.11.10 (python/cpython#112275). So be the last here.
        if received.device.type == "cpu":
            if received.nbytes <= KEPT:
                self._finished.append(work)
                return
            del work
            until = time.monotonic() + LONGEST_S
            held = [value for value in (received, *others) if isinstance(value, torch.Tensor)]
            while any(_holders(tensor) > 1 for tensor in held) and time.monotonic() < until:
                time.sleep(0)


def _holders(x: Any) -> int:
    return int(x._use_count())
