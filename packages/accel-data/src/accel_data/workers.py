"""Start loader workers, hide them from sources, and end them with the process."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, final
from weakref import WeakSet

import torch
from accel_ops.rng import seed_everything
from accel_state.environ import FLIGHT_RECORDER, process_environ
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

T = TypeVar("T")
Start = Callable[[int], None]


def worker_start(then: Start | None, rank: int = 0) -> Start | None:
    """Return a `worker_init_fn` for workers that ignore signals, with other seeds on each rank.

    Workers ignore the signals that this process handles by itself, so that they outlive them. In a job of the launcher
    they always ignore those of schedulers, as the script may begin to handle them later. Rank 0 has the seeds of torch.

    Args:
        then: The `worker_init_fn` of the script, to be called last.
        rank: Rank that the seeds depend on.

    Returns:
        The function, or `then` itself if there is nothing else to do.
    """
    watched = bool(process_environ().get(FLIGHT_RECORDER))
    noted = [
        int(number)
        for number in signal.valid_signals()
        if getattr(signal.getsignal(number), "shields_workers", False)  # as accel's handler has it
        or (watched and number in (signal.SIGTERM, signal.SIGUSR1))
    ]
    return WorkerStart(noted, rank, then) if noted or rank else then


@final
class WorkerStart:
    """A `worker_init_fn` that comes before the one of the script.

    Args:
        signals: Signals that the worker ignores.
        rank: Rank that the seeds depend on.
        then: The `worker_init_fn` of the script.
    """

    def __init__(self, signals: Sequence[int], rank: int, then: Start | None) -> None:
        self.signals, self._rank, self._then = signals, rank, then

    def __call__(self, worker_id: int) -> None:
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)
        if self._rank:  # torch has seeded the worker with (a number of the synchronised generator) + worker_id
            seed_everything((torch.initial_seed() + self._rank * 0x9E3779B97F4A7C15) % 2**63)
        if self._then is not None:
            self._then(worker_id)

    def around(self, then: Start | None) -> Self:
        """Return the same around another `worker_init_fn`."""
        return type(self)(self.signals, self._rank, then)


def unseen_worker(call: Callable[..., T], *arguments: Any) -> T:
    """Return what `call` returns while `get_worker_info()` returns None.

    A source that divides itself among the workers that it sees would divide the shards of one worker again. torch has
    no public way to hide a worker. The worker is shown again at the end, also after an error.

    Args:
        call: Function to call.
        *arguments: Arguments of the function.
    """
    if get_worker_info() is None:
        return call(*arguments)
    seen, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        return call(*arguments)
    finally:
        torch_worker._worker_info = seen


_iterators: WeakSet[Any] = WeakSet()
_workers: WeakSet[Any] = WeakSet()


def end_at_exit(iterator: Any) -> None:
    """Register the workers of an iterator of torch to be ended when the process ends.

    Workers that ignore signals (`worker_start`) would ignore the signal at the end too, and torch would wait for them.

    Args:
        iterator: What `iter` of a DataLoader has returned.
    """
    if hasattr(iterator, "_shutdown_workers"):
        _iterators.add(iterator)
        _workers.update(iterator._workers)
        # what is registered last comes first: before torch's own, which is registered with each iterator
        atexit.unregister(_end)
        atexit.register(_end)


def _end() -> None:
    for iterator in list(_iterators):
        iterator._shutdown_workers()
    for worker in list(_workers):
        if worker.is_alive():  # in the middle of something that does not end
            worker.kill()
