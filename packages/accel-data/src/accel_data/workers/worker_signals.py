"""Loader workers leave signals that ask the job to stop to the process that they work for."""

from __future__ import annotations

import signal
from collections.abc import Callable


class Shield:
    """A `worker_init_fn` that lets a worker outlive the signals that the main process notes, and does not end at."""

    def __init__(self, signals: list[int], then: Callable[[int], None] | None) -> None:
        self.signals = signals
        self.then = then

    def __call__(self, worker_id: int) -> None:
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)
        if self.then is not None:
            self.then(worker_id)


def shielded(then: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """The `worker_init_fn` of loaders that are made now: the same one, where no signal is noted."""
    noted = [
        int(number)
        for number in signal.valid_signals()
        if getattr(signal.getsignal(number), "shields_workers", False)  # as accel's handler has it
    ]
    return Shield(noted, then) if noted else then
