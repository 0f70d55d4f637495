"""A stream that is sharded at its source: each rank and worker reads only its own shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from math import lcm
from typing import Any, final

from accel_state import Tail
from torch.utils.data import get_worker_info

from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.reader import ENDED, NOTHING, Reader, ReaderSettings, is_ended, opened, state_of
from accel_data.iterable.round_robin import RoundRobin, in_turn
from accel_data.iterable.stateful import is_stateful
from accel_data.resume.loader_state import ResumeError, StreamPosition
from accel_data.sharding.rank_slices import Ending
from accel_data.workers.worker_identity import unseen_worker

#: logical shards of a stream: numbers of readers that divide this one see the same order
SHARDS = 8


def logical_shards(own: int | None, readers: int, *, alone: bool = False, even: bool = False) -> int | None:
    """Into how many logical shards a stream with `own` shards is cut for that many readers; None if it cannot be.

    They are at most eight for each reader, and equally many for each, so that some may read one of the stream's own
    shards more; if ranks are to be `even`, only if all have eight or more. In one process, `alone`, some readers may
    have none.
    """
    if own is None:
        return lcm(SHARDS, readers)
    if own < readers:
        return max(own, 1) if alone else None
    if even and own % readers and own < SHARDS * readers:
        return None
    if own <= SHARDS and own % readers == 0:
        return own
    wanted = lcm(SHARDS, readers)
    return wanted if wanted <= own else own // readers * readers


@final
class ShardReader(Reader):
    """Reads this rank's logical shards of a stream in turn, one sample of each.

    The shards and the order of turns do not depend on the number of ranks: as long as no shard has ended, samples
    n*k to n*(k+1) of the turns are the k-th batch of n of the job, at any world. With `shared=False` the one shard of
    each reader is the whole stream that it finds, which divides itself.
    """

    def __init__(self, dataset: Any, shards: int, settings: ReaderSettings, *, shared: bool = True) -> None:
        self.dataset = dataset
        self.shards = shards
        self.settings = settings
        self.shared = shared
        self._epoch: int | None = None
        #: sources that live on from pass to pass, as the stream itself would, and those that were put at a place
        self._kept: dict[int, Any] = {}
        self._put: set[int] = set()
        self._whole = True

    @property
    def unit(self) -> str:
        """As `Reader`."""
        return "shards" if self.shared else "readers"

    @property
    def streams(self) -> int:
        """As `Reader`: one place for each logical shard."""
        return self.shards

    @property
    def rank_alone(self) -> bool:
        """As `Reader`."""
        return True

    @property
    def tells_end(self) -> bool:
        """As `Reader`."""
        return self.settings.persistent

    def cut_into(self, streams: int) -> None:
        """As `Reader`."""
        where, readers = self.settings.where, self.settings.readers
        if not self.shared or streams == self.shards:
            return
        if streams < 1 or streams % (where.of * readers):
            raise ResumeError(
                f"the stream was cut into {streams} shards, which {where.of} processes with {readers} readers"
                f" each cannot share equally; continue with a number of readers that divides {streams}"
            )
        self.shards = streams

    def own_shards(self, reader: int) -> list[int]:
        """The logical shards that one reader of this rank reads."""
        of_worker = range(reader, self.shards, self.settings.readers)
        return list(of_worker[self.settings.where.index :: self.settings.where.of])

    def place_at(self, start: StreamPosition) -> None:
        """As `Reader`; sources are opened anew."""
        super().place_at(start)
        self._kept, self._put = {}, set()

    def read(self, reader: int, start: StreamPosition) -> Iterator[ReadBatch]:
        """As `Reader`."""
        # a source that divides itself among the workers that it sees would divide the shards of this one again
        in_worker = self.shared and get_worker_info() is not None
        call: Callable[..., Any] = unseen_worker if in_worker else lambda function, *given: function(*given)
        sources, turns = call(self._opened, reader, start)
        return self._batches(reader, sources, turns, partial(unseen_worker, turns.take) if in_worker else turns.take)

    def _opened(self, reader: int, start: StreamPosition) -> tuple[dict[int, Any], RoundRobin]:
        items, stateful = {}, {}
        for shard in self.own_shards(reader):
            source, items[shard] = self._open(shard, start.taken.get(shard, 0), start.states.get(shard))
            if is_stateful(source):
                stateful[shard] = source
        return stateful, RoundRobin(items, start.taken, ahead=not stateful)

    @property
    def _may_be_left(self) -> bool:
        """Whether a pass can end before its sources: all ranks end with the first."""
        return self.settings.ending is Ending.DROP and self.settings.where.of > 1

    def _open(self, shard: int, taken: int, state: Any) -> tuple[Any, Iterator[Any]]:
        if shard in self._put and self._whole:
            # it may begin each pass where it was put: a new one goes on from its state
            self._put.discard(shard)
            state = state_of(self._kept.pop(shard))
        source = self._source(shard)
        if state is None or not is_stateful(source):
            return source, opened(source, taken, state)[0]
        if shard in self._kept:
            self._put.add(shard)
        if is_ended(state):
            if "next" in state:
                source.load_state_dict(state["next"])
            return source, iter(())
        source.load_state_dict(state)
        items = iter(source)
        first = next(items, NOTHING) if not taken else None
        if first is not NOTHING:
            return source, items if taken else chain([first], items)
        self._put.discard(shard)  # its pass had just ended: the next one is that of a new source
        self._kept.pop(shard, None)
        source = self._source(shard)
        return source, iter(source)

    def _source(self, shard: int) -> Any:
        if shard in self._kept:
            return self._kept[shard]
        source = self.dataset if not self.shared else self.dataset.shard(num_shards=self.shards, index=shard)
        if self._epoch is not None and hasattr(source, "set_epoch"):
            source.set_epoch(self._epoch)  # a shard may not know the epoch of what it is a shard of
        elif self._epoch is None and not self._may_be_left:
            self._kept[shard] = source
        return source

    def _batches(
        self, reader: int, stateful: dict[int, Any], turns: RoundRobin, take: Callable[[int], list[Any]]
    ) -> Iterator[ReadBatch]:
        rows, drop = self.settings.rows or 1, self.settings.ending is Ending.DROP
        states: dict[int, Any] = {}
        given, self._whole = 0, False
        while samples := take(rows):
            if drop and len(samples) < rows:
                break
            given += len(samples)
            count = len(samples)
            batch = ReadBatch(samples if self.settings.rows is not None else samples[0], reader, given, count)
            if count < rows and self.settings.where.of == 1:
                batch.tail = Tail((count,), (count,))
            if stateful or not turns.even:
                batch.taken = taken = turns.taken
                for shard, source in stateful.items():
                    if shard in turns.ended:
                        states[shard] = ENDED | {"next": state_of(source)}
                    elif taken[shard] != turns.before.get(shard, 0):  # else it stands where it was put
                        states[shard] = state_of(source)
                batch.states = dict(states)
            yield batch
        self._whole = True
        if self.tells_end and stateful and not self._may_be_left:
            yield ReadBatch(None, reader, states={shard: state_of(one) for shard, one in stateful.items()}, end=True)

    def counts(self, reader: int, given: int, before: dict[int, int]) -> dict[int, int]:
        """As `Reader`: turns begin with the shards that have given least."""
        own = sorted(self.own_shards(reader), key=lambda shard: (before.get(shard, 0), shard))
        return {shard: before.get(shard, 0) + count for shard, count in in_turn(own, given).items()}

    def current_states(self) -> dict[int, Any]:
        """As `Reader`."""
        return {shard: state_of(source) for shard, source in self._kept.items() if is_stateful(source)}

    def __len__(self) -> int:
        """Samples of this rank's batches, all of them full, if shards know their lengths."""
        if not self.shared:
            return len(self.dataset)
        rows, where, readers = self.settings.rows or 1, self.settings.where, self.settings.readers
        lengths = [len(self.dataset.shard(num_shards=self.shards, index=shard)) for shard in range(self.shards)]
        ending = self.settings.ending
        batches = []
        for rank in range(where.of):
            read = [sum(lengths[worker::readers][rank :: where.of]) for worker in range(readers)]
            full = ending is Ending.DROP
            batches.append(sum(one // rows if full else -(-one // rows) for one in read))
        if ending is Ending.UNEVEN:
            return batches[where.index] * rows
        return (min(batches) if ending is Ending.DROP else max(batches)) * rows

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it, and to its shards."""
        if hasattr(self.dataset, "set_epoch"):
            self._epoch = epoch
            self.dataset.set_epoch(epoch)
