"""What loader workers do when they start: take seeds of their rank, and leave signals to the process they work for."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

import torch
from accel_ops.rng import seed_everything
from accel_state.environ import FLIGHT_RECORDER, process_environ

Start = Callable[[int], None]


def seeded(rank: int, then: Start | None) -> Start:
    """A `worker_init_fn` that moves the seeds of a rank's loader workers away from those of rank 0."""
    return partial(_seed, rank, then)


def shielded(then: Start | None) -> Start | None:
    """A `worker_init_fn` for workers that outlive the signals that this process notes; `then`, if it notes none.

    In a job of the launcher, which ends all that is left of it, workers outlive what schedulers send in any case: the
    script may begin to note it after they have started.
    """
    watched = bool(process_environ().get(FLIGHT_RECORDER))
    noted = [
        int(number)
        for number in signal.valid_signals()
        if getattr(signal.getsignal(number), "shields_workers", False)  # as accel's handler has it
        or (watched and number in (signal.SIGTERM, signal.SIGUSR1))
    ]
    return partial(_shield, noted, then) if noted else then


def _seed(rank: int, then: Start | None, worker_id: int) -> None:
    # torch has seeded the worker with (a number drawn from the synchronised generator) + worker_id.
    seed_everything((torch.initial_seed() + rank * 0x9E3779B97F4A7C15) % 2**63)
    if then is not None:
        then(worker_id)


def _shield(signals: list[int], then: Start | None, worker_id: int) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    if then is not None:
        then(worker_id)
