"""Loader workers: what they do when they start, what sources see of them, and how they end with the process."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from accel_ops.rng import seed_everything
from accel_state.environ import FLIGHT_RECORDER, process_environ
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

T = TypeVar("T")
Start = Callable[[int], None]


def worker_start(then: Start | None, rank: int = 0) -> Start | None:
    """A `worker_init_fn` for workers that outlive the signals that this process notes, with seeds unlike other ranks'.

    Rank 0 has the seeds of torch. In a job of the launcher, which ends all that is left of it, workers outlive what
    schedulers send in any case: the script may begin to note it after they have started. `then` itself is returned if
    nothing is to be done.
    """
    watched = bool(process_environ().get(FLIGHT_RECORDER))
    noted = [
        int(number)
        for number in signal.valid_signals()
        if getattr(signal.getsignal(number), "shields_workers", False)  # as accel's handler has it
        or (watched and number in (signal.SIGTERM, signal.SIGUSR1))
    ]
    return partial(_start, noted, rank, then) if noted or rank else then


def _start(signals: list[int], rank: int, then: Start | None, worker_id: int) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    if rank:  # torch has seeded the worker with (a number drawn from the synchronised generator) + worker_id
        seed_everything((torch.initial_seed() + rank * 0x9E3779B97F4A7C15) % 2**63)
    if then is not None:
        then(worker_id)


def unseen_worker(call: Callable[..., T], *arguments: Any) -> T:
    """What `call` returns while `get_worker_info()` returns None.

    A source that divides itself among the workers that it sees would divide the shards of one worker again. torch has
    no public way to be in a worker unseen; what is hidden is shown again, whatever happens.
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
    """Ends the workers of torch's iterator when the process ends, before anybody tells them to by a signal.

    Workers that leave signals to this process (`worker_start`) would not hear that, and be waited for.
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
