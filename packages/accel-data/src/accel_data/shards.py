"""A stream that can be sharded at its source: each rank and worker reads only its own shards."""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from accel_data.iterable import ENDED, is_stateful
from accel_data.marks import Mark, Marked
from accel_data.plan import DataRank, Ending
from accel_data.state import ResumeError

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


class Turns:
    """Samples of several shards in turn, one of each, and how many were taken of each.

    A shard that has ended is passed over. `taken` counts what was taken of each shard before. With `ahead` a turn is
    read at once, which is faster; without, nothing is read before it is served.
    """

    def __init__(self, sources: dict[int, Any], taken: dict[int, int], *, ahead: bool) -> None:
        # the turn goes on where it was: shards that have given least come first
        self.shards = sorted(sources, key=lambda shard: (taken.get(shard, 0), shard))
        self.before = taken
        #: whether no shard has ended
        self.even = True
        self._passed = 0
        self._ends: dict[int, int] = {}
        sounded = [chain(sources[shard], self._sound()) for shard in self.shards]
        if len(sounded) == 1:
            self._items: Iterator[Any] = sounded[0]
        elif ahead:
            self._items = chain.from_iterable(zip_longest(*sounded, fillvalue=_END))
        else:
            self._items = _one_by_one(sounded)

    def _sound(self) -> Iterator[Any]:
        """Notes, in the moment in which a shard ends, that not all that follows are samples."""
        self.even = False
        yield from ()

    def take(self, count: int) -> list[Any]:
        """The next `count` samples, fewer at the end."""
        found = list(islice(self._items, count))
        if self.even:
            self._passed += len(found)
            return found
        found = self._samples(found)
        while len(found) < count:
            more = list(islice(self._items, count - len(found)))
            if not more:
                break
            found += self._samples(more)
        return found

    def _samples(self, items: list[Any]) -> list[Any]:
        samples = []
        for item in items:
            turn, place = divmod(self._passed, len(self.shards))
            self._passed += 1
            if item is _END:
                self._ends.setdefault(place, turn)
            else:
                samples.append(item)
        return samples

    @property
    def ended(self) -> set[int]:
        """Shards that have no more."""
        return {self.shards[place] for place in self._ends}

    @property
    def taken(self) -> dict[int, int]:
        """Samples taken of each shard so far."""
        return {
            shard: self.before.get(shard, 0) + min(count, self._ends.get(place, count))
            for place, (shard, count) in enumerate(in_turn(self.shards, self._passed).items())
        }


def _one_by_one(sources: Sequence[Iterator[Any]]) -> Iterator[Any]:
    ended = 0
    while ended < len(sources):
        ended = 0
        for source in sources:
            item = next(source, _END)
            ended += item is _END
            yield item


def in_turn(shards: list[int], count: int) -> dict[int, int]:
    """How many of `count` samples each shard gives, when they give one each in that order."""
    turns, rest = divmod(count, len(shards))
    return {shard: turns + (place < rest) for place, shard in enumerate(shards)}


class ShardedStream(IterableDataset[Any]):
    """One rank's samples of a stream, read from its own shards of the source in turn, one sample of each.

    The shards and the order of turns do not depend on the number of ranks: as long as no shard has ended, samples
    n*k to n*(k+1) of the turns are the k-th batch of n of the job, whatever the world. The first sample of a batch
    comes as `Marked` where there is more to tell than that all shards gave their full turns.
    """

    def __init__(
        self,
        dataset: Any,
        shards: int,
        where: DataRank,
        rows: int | None,
        *,
        ending: Ending = Ending.UNEVEN,
        workers: int = 0,
    ) -> None:
        self.dataset = dataset
        self.shards = shards
        self.where = where
        self.rows = rows
        self.ending = ending
        self.workers = max(workers, 1)
        #: samples taken of each shard, and what its source said, where the next pass does not begin at the front
        self.start: tuple[dict[int, int], dict[int, Any]] | None = None

    def cut_into(self, shards: int) -> None:
        """Cuts the stream into another number of shards.

        Raises: ResumeError for a number that this world cannot share.
        """
        readers = self.where.of * self.workers
        if shards < 1 or shards % readers:
            raise ResumeError(
                f"the stream was cut into {shards} shards, which {self.where.of} processes with {self.workers} readers"
                f" each cannot share equally; continue with a number of readers that divides {shards}"
            )
        self.shards = shards

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
        sources, items = {}, {}
        for shard in self.own_shards(stream, workers):
            sources[shard] = self.dataset.shard(num_shards=self.shards, index=shard)
            items[shard] = _from(sources[shard], taken.get(shard, 0), states.get(shard))
        stateful = {shard: source for shard, source in sources.items() if is_stateful(source)}
        turns = Turns(items, taken, ahead=not stateful)
        own = {shard: state for shard, state in states.items() if shard in sources}
        return chain.from_iterable(self._batches(turns, stream, workers > 1, stateful, own))

    def _batches(
        self, turns: Turns, stream: int, tells_stream: bool, stateful: dict[int, Any], states: dict[int, Any]
    ) -> Iterator[list[Any]]:
        rows, tells = self.rows or 1, tells_stream or bool(stateful)
        while batch := turns.take(rows):
            if self.ending is Ending.DROP and len(batch) < rows:
                return
            if tells or not turns.even:
                taken = turns.taken
                for shard, source in stateful.items():
                    if shard in turns.ended:
                        states[shard] = ENDED
                    elif taken[shard] != turns.before.get(shard, 0):  # else it stands where it was put
                        # a copy: a source may go on with the very object that it told
                        states[shard] = copy.deepcopy(source.state_dict())
                batch[0] = Marked(batch[0], Mark(None, stream, len(batch), taken, dict(states)))
            yield batch

    def __len__(self) -> int:
        """Samples of this rank's batches, all of them full, when shards know their lengths."""
        rows = self.rows or 1
        lengths = [len(self.dataset.shard(num_shards=self.shards, index=shard)) for shard in range(self.shards)]
        batches = []
        for rank in range(self.where.of):
            read = [sum(lengths[worker :: self.workers][rank :: self.where.of]) for worker in range(self.workers)]
            full = self.ending is Ending.DROP
            batches.append(sum(one // rows if full else -(-one // rows) for one in read))
        if self.ending is Ending.UNEVEN:
            return batches[self.where.index] * rows
        return (min(batches) if self.ending is Ending.DROP else max(batches)) * rows

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


def _from(source: Any, taken: int, state: Any) -> Iterator[Any]:
    """The items of a shard from there on."""
    if state == ENDED:
        return iter(())
    if state is not None and is_stateful(source):
        source.load_state_dict(state)
        taken = 0
    items: Iterator[Any] = iter(source)
    deque(islice(items, taken), maxlen=0)
    return items
