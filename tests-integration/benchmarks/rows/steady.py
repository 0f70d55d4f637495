"""Processor time of rank 0 per own batch in real worlds of one and two processes, through each library's usual call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.contestants.raw import batches_share, shard_share, stream_share
from benchmarks.data import BATCH_SIZE, in_blocks, shuffled, stream_that_shards, streamed
from benchmarks.row import Lineup, Repetition, Row
from benchmarks.timing import BATCHES, SPARE, per_batch

Make = Callable[[int], DataLoader[Any]]


def _lineup(
    make: Make, world: int, raw: Callable[[DataLoader[Any], int], Repetition], dispatch_batches: bool | None = None
) -> Lineup:
    size = (BATCHES + SPARE) * BATCH_SIZE * world
    return Lineup.of(
        {
            "raw": lambda: raw(make(size), world),
            "accel": lambda: per_batch(Accel().prepared(make(size), dispatch_batches=dispatch_batches)),
            "accelerate": lambda: per_batch(Accelerate().prepared(make(size), dispatch_batches=dispatch_batches)),
        }
    )


def _raw_shuffled(loader: DataLoader[Any], world: int) -> Repetition:
    if world == 1:
        return per_batch(loader)
    dataset: Any = loader.dataset
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=True)
    return per_batch(DataLoader(dataset, BATCH_SIZE, sampler=sampler), set_epoch=sampler.set_epoch)


def _raw_in_blocks(loader: DataLoader[Any], world: int) -> Repetition:
    return per_batch(loader if world == 1 else batches_share(loader, world=world, rank=dist.get_rank()))


def _raw_streamed(loader: DataLoader[Any], world: int) -> Repetition:
    return per_batch(loader if world == 1 else stream_share(loader, world=world, rank=dist.get_rank()))


def _raw_sharded(loader: DataLoader[Any], world: int) -> Repetition:
    return per_batch(loader if world == 1 else shard_share(loader, world=world, rank=dist.get_rank()))


ROWS = (
    Row("map, shuffled, world 1", partial(_lineup, shuffled, 1, _raw_shuffled), 1.03),
    Row("map, shuffled, world 2", partial(_lineup, shuffled, 2, _raw_shuffled), 1.03, world=2),
    Row("custom batch sampler, world 1", partial(_lineup, in_blocks, 1, _raw_in_blocks), 1.06),
    Row("custom batch sampler, world 2", partial(_lineup, in_blocks, 2, _raw_in_blocks), 1.06, world=2),
    Row("iterable, world 1", partial(_lineup, streamed, 1, _raw_streamed), 1.05),
    Row("iterable, world 2, dispatched", partial(_lineup, streamed, 2, _raw_streamed), 3.0, world=2),
    Row(
        "iterable, world 2, dispatch_batches=False",
        partial(_lineup, streamed, 2, _raw_streamed, False),
        1.05,
        world=2,
    ),
    Row("iterable that can shard, world 1", partial(_lineup, stream_that_shards, 1, _raw_sharded), 1.05),
    Row("iterable that can shard, world 2", partial(_lineup, stream_that_shards, 2, _raw_sharded), 1.05, world=2),
)
