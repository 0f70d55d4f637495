"""A stream that can be sharded at its source: each rank and worker reads only its own shards."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from accel_data.iterable import is_stateful
from accel_data.marks import Mark, Marked
from accel_data.plan import DataRank

#: logical shards of a source that does not say how many it has; 1, 2, 4 or 8 readers share them equally
SHARDS = 8


def can_be_sharded(dataset: object) -> bool:
    """Whether a stream has `shard(num_shards, index)`."""
    shard = getattr(dataset, "shard", None)
    if not callable(shard):
        return False
    return {"num_shards", "index"} <= set(inspect.signature(shard).parameters)


def shards_for(dataset: Any, readers: int) -> int | None:
    """Into how many shards a stream is cut for that many readers; None where they cannot share its own equally."""
    own = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    if isinstance(own, int) and not isinstance(own, bool):
        return own if own >= readers and own % readers == 0 else None
    return -(-SHARDS // readers) * readers


_END = object()


@dataclass(slots=True)
class _Reader:
    shard: int
    items: Iterator[Any]
    source: Any
    taken: int = 0


class ShardedStream(IterableDataset[Any]):
    """One rank's samples of a stream, read from its own shards of the source in turn, one sample of each.

    The shards and the order of turns do not depend on the number of ranks: as long as no shard has ended, samples
    n*k to n*(k+1) of the turns are the k-th batch of n of the job, whatever the world. The first sample of each batch
    comes as `Marked`.
    """

    def __init__(
        self, dataset: Any, shards: int, where: DataRank, rows: int | None, *, drop_last: bool = False
    ) -> None:
        self.dataset = dataset
        self.shards = shards
        self.where = where
        self.rows = rows
        self.drop_last = drop_last
        #: samples taken of each shard, and what its source said, where the next pass does not begin at the front
        self.start: tuple[dict[int, int], dict[int, Any]] | None = None

    def own_shards(self, worker: int, workers: int) -> list[int]:
        """The shards that one worker of this rank reads."""
        of_worker = range(worker, self.shards, workers)
        return list(of_worker[self.where.index :: self.where.of])

    def __iter__(self) -> Iterator[Any]:
        (taken, states), self.start = self.start or ({}, {}), None
        worker = get_worker_info()
        stream, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        if worker is not None:
            # a source that divides itself among workers must not divide the shards of this one again
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=0, num_workers=1, seed=worker.seed, dataset=self.dataset
            )
        readers = [
            self._reader(shard, taken.get(shard, 0), states.get(shard)) for shard in self.own_shards(stream, workers)
        ]
        readers.sort(key=lambda one: (one.taken, one.shard))
        only = readers[0] if len(readers) == 1 else None
        samples, rows = only.items if only is not None else self._turns(readers), self.rows or 1
        while batch := list(islice(samples, rows)):
            if only is not None:
                only.taken += len(batch)
            if self.drop_last and len(batch) < rows:
                return
            yield Marked(batch[0], self._mark(stream, len(batch), readers))
            yield from batch[1:]

    def __len__(self) -> int:
        """Samples of this rank, when shards know their lengths."""
        own = self.own_shards(0, 1)
        return sum(len(self.dataset.shard(num_shards=self.shards, index=shard)) for shard in own)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def _reader(self, shard: int, taken: int, state: Any) -> _Reader:
        source = self.dataset.shard(num_shards=self.shards, index=shard)
        if state is not None and is_stateful(source):
            source.load_state_dict(state)
            return _Reader(shard, iter(source), source, taken)
        items = iter(source)
        deque(islice(items, taken), maxlen=0)
        return _Reader(shard, items, source, taken)

    @staticmethod
    def _mark(stream: int, count: int, readers: list[_Reader]) -> Mark:
        state = {one.shard: one.source.state_dict() for one in readers if is_stateful(one.source)}
        return Mark(stream=stream, count=count, taken=tuple((one.shard, one.taken) for one in readers), state=state)

    @staticmethod
    def _turns(readers: list[_Reader]) -> Iterator[Any]:
        alive = list(readers)
        while alive:
            for one in alive:
                item = next(one.items, _END)
                if item is _END:
                    alive = [other for other in alive if other is not one]
                else:
                    one.taken += 1
                    yield item
