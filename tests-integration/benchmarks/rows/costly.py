"""Time per sample of a stream whose samples cost 5 ms of computing: two processes against one that reads it all."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, process_time

import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.contestants.accel import Accel
from benchmarks.contestants.accelerate import Accelerate
from benchmarks.contestants.library import Library
from benchmarks.data import Sample, ShardableStream
from benchmarks.row import Lineup, Repetition, Row

SAMPLES, ROWS_EACH, COST_S = 64, 4, 0.005


class CostlyStream(ShardableStream):
    """Its shards can be read without the others; each sample is worked on before it comes."""

    def shard(self, num_shards: int, index: int) -> CostlyStream:
        part = CostlyStream(0)
        part.numbers = self.numbers[index::num_shards]
        return part

    def __iter__(self) -> Iterator[Sample]:
        for sample in super().__iter__():
            ready = process_time() + COST_S
            while process_time() < ready:
                pass
            yield sample


def _loader() -> DataLoader[Sample]:
    return DataLoader(CostlyStream(SAMPLES), ROWS_EACH)


def _alone() -> Repetition:
    loader = _loader()

    def repeat() -> float:
        began = perf_counter()
        if dist.get_rank() == 0:
            for _ in loader:
                pass
        return (perf_counter() - began) / SAMPLES

    return repeat


def _shared(library: Library) -> Repetition:
    loader = library.prepared(_loader())

    def repeat() -> float:
        began = perf_counter()
        for _ in loader:
            pass
        dist.barrier()
        return (perf_counter() - began) / SAMPLES

    return repeat


def _lineup() -> Lineup:
    return Lineup.of(
        {"raw": _alone, "accel": lambda: _shared(Accel()), "accelerate": lambda: _shared(Accelerate())},
        remark=lambda: "raw is one process that reads everything; both together should need 1 / 1.8 of that",
    )


ROWS = (Row("costly iterable that can shard, two processes against one", _lineup, 0.556, world=2, least=7),)
