"""Processor time per own batch of one rank's share in simulated worlds, up to 512 ranks, without a process group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.contestants import raw
from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.data import BATCH_SIZE, in_blocks, shuffled, stream_that_shards, streamed
from benchmarks.row import Lineup, Row
from benchmarks.timing import BATCHES, SPARE, per_batch

WORLDS = (1, 8, 64, 512)
#: name, loader of the whole data, hand-written share of it, target, target in the largest world
KINDS: tuple[tuple[str, Callable[[int], DataLoader[Any]], Callable[..., DataLoader[Any]], float, float], ...] = (
    ("map, shuffled", shuffled, raw.shuffled_share, 1.03, 1.03),
    ("custom batch sampler", in_blocks, raw.batches_share, 1.06, 1.06),
    ("iterable", streamed, raw.stream_share, 1.05, 1.10),
    ("iterable that can shard", stream_that_shards, raw.shard_share, 1.05, 1.10),
)


def _lineup(make: Callable[[int], DataLoader[Any]], by_hand: Callable[..., DataLoader[Any]], world: int) -> Lineup:
    size = (BATCHES + SPARE) * BATCH_SIZE * world
    rank = 1 % world

    def plain() -> DataLoader[Any]:
        return make(size) if world == 1 else by_hand(make(size), world=world, rank=rank)

    return Lineup.of(
        {
            "raw": lambda: per_batch(plain()),
            "accel": lambda: per_batch(Accel().share(make(size), world=world, rank=rank)),
            "accelerate": lambda: per_batch(Accelerate().share(make(size), world=world, rank=rank)),
        }
    )


ROWS = tuple(
    Row(
        f"{name}, simulated world {world}",
        partial(_lineup, make, by_hand, world),
        at_most if world == WORLDS[-1] else target,
        least=7,
    )
    for name, make, by_hand, target, at_most in KINDS
    for world in WORLDS
)
