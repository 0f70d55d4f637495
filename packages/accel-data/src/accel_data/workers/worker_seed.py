"""Gives the loader workers of each rank seeds of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from accel_data.rng import seed_everything


@final
class WorkerSeed:
    """A `worker_init_fn` that moves the seeds of a rank's loader workers away from those of rank 0."""

    def __init__(self, rank: int, then: Callable[[int], None] | None) -> None:
        self.rank = rank
        self.then = then

    def __call__(self, worker_id: int) -> None:
        # torch has seeded the worker with (a number drawn from the synchronised generator) + worker_id.
        seed_everything((torch.initial_seed() + self.rank * 0x9E3779B97F4A7C15) % 2**63)
        if self.then is not None:
            self.then(worker_id)
