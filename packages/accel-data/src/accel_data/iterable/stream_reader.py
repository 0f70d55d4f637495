"""Read a stream for one rank, in the process of the loader or in each of its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, cycle, islice, product
from typing import Any, final

import torch
from accel_ops.content_hash import digest_of
from accel_state import BatchPadding
from torch.utils.data import IterableDataset, get_worker_info

from accel_data.iterable.every_rank import IterableDatasetShard
from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.round_robin import ItemCounts, RoundRobin
from accel_data.iterable.source import Source
from accel_data.plan import Exchange, LoaderPlan
from accel_data.resume.loader_state import LoaderState, ResumeError, StreamPosition
from accel_data.sharding.rank_slices import Ending
from accel_data.traits import Shard
from accel_data.workers import unseen_worker


@final
class StreamReader(IterableDataset[Any]):
    """A stream as one rank reads it, for a DataLoader that does not batch by itself.

    Without `shards`, it reads the whole stream and keeps the slice of this rank of each round. With `shards`, it reads
    the logical shards of this rank in turn, one sample of each. Shards and turns do not depend on the number of ranks.
    As long as no shard has ended, samples n*k to n*(k+1) of the turns are the k-th batch of n of the job, at any world.

    Args:
        dataset: The stream.
        plan: Who reads it, in how many shards, and what ranks exchange.
        batch_size: Samples of a batch of the script, or None if the elements of the stream are batches.
        shard: Function that makes a shard. Without it, the stream divides itself, and is the one shard of each reader.
        workers: Number of loader workers.
        persistent: Whether these live on after an epoch.
    """

    def __init__(
        self,
        dataset: Any,
        plan: LoaderPlan,
        batch_size: int | None,
        shard: Shard | None = None,
        workers: int = 0,
        persistent: bool = False,
    ) -> None:
        self.dataset, self.shard, self.where = dataset, shard, plan.reads
        split = plan.split_batches and not plan.dispatches
        self.share = IterableDatasetShard(
            dataset, batch_size, False, self.where.of, self.where.index, split, ending=plan.ending
        )
        self.rows, self.ending = self.share.rows, self.share.ending
        self.readers = plan.readers
        #: whether workers live on; they are started anew for each epoch of a stream with `set_epoch`
        self.persistent = persistent and not hasattr(dataset, "set_epoch")
        #: whether other ranks read other samples, so that only all of them know the position and the end
        self.rank_alone = plan.shards is not None
        #: whether ranks agree on each batch
        self.in_step = Exchange.VOTES in plan.exchanges
        self.unit = plan.unit
        #: how many positions a state has
        self.streams = plan.shards or plan.readers
        #: where the next epoch begins; None if sources resume by themselves
        self.start: StreamPosition | None = None
        #: epochs that began, and the newest of which the script had all, as loader workers that live on see it
        self.passes, self.finished = 0, torch.zeros(1, dtype=torch.int64, device="cpu")
        if self.persistent:
            self.finished.share_memory_()  # type: ignore[no-untyped-call] # of torch
        #: batches of a list, 1 for batches without a list; workers take turns batch by batch, in another order
        self.at_a_time = 1 if workers else plan.batches_per_round
        #: whether the first batch of the next epoch comes with a digest of the first sample
        self.tells_first = Exchange.FIRST_SAMPLE in plan.exchanges
        self._epoch: int | None = None
        # attributes of the stream when its shards were made
        self._cut_from: dict[str, Any] = {}
        self._sources = {} if self.rank_alone else {number: self._source(number) for number in range(self.readers)}
        # ranks that end with the first leave what they have not read: their next epoch has shards of its own
        left = self.ending is Ending.DROP and self.where.of > 1
        self._lives_on = not self.rank_alone or not (left or hasattr(self.dataset, "set_epoch"))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # of a reader that is not made yet, as in pickle
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the reader, or of the stream, which a script reaches by `loader.dataset`."""
        made = "_lives_on" in vars(self) and name not in vars(self)
        setattr(self.dataset, name, value) if made else super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        reader = 0 if worker is None else worker.id
        self.passes += worker is not None
        left = worker is not None and int(self.finished) < self.passes - 1
        # a worker that lives on must not start there again
        start, self.start = self.start or StreamPosition({}, {}), None
        # a source that divides itself among the workers that it sees would divide its shard again
        begin = partial(self._begun, reader, start, left)
        batches = unseen_worker(begin) if self.shard is not None else begin()
        if self.at_a_time == 1:
            return batches
        return iter(lambda: list(islice(batches, self.at_a_time)), [])

    def _begun(self, reader: int, start: StreamPosition, left: bool) -> Iterator[ReadBatch]:
        own = self._own(self.where.index, reader) if self.rank_alone else [reader]
        if self.shard is not None and self._sources:
            self._refuse_changed()
        sources = {number: self._sources.get(number) or self._source(number) for number in own}
        if self.shard is not None:
            self._cut_from = {name: value for name, value in vars(self.dataset).items() if value is not None}
        self._sources = sources if self._lives_on else {}
        taken = {number: start.taken.get(number, 0) for number in own}
        keep = 0 if self.rank_alone else self.round
        begun = {
            number: source.begin(taken[number], start.states.get(number), keep, left)
            for number, source in sources.items()
        }
        if self.rank_alone:
            items = {number: chain(begun[number][0], source.at_end()) for number, source in sources.items()}
            batches = self._in_turn(reader, items, taken)
        else:
            batches = self._slices(reader, sources[reader], *begun[reader], taken)
        stateful = {number: source for number, source in sources.items() if source.stateful}
        return self._with_states(batches, reader, stateful, taken) if stateful else batches

    def _refuse_changed(self) -> None:
        now = vars(self.dataset)
        changed = [name for name, value in self._cut_from.items() if now.get(name) is not value]
        if changed:
            raise ValueError(
                f"{', '.join(changed)} of {type(self.dataset).__name__} changed after the stream was cut into shards,"
                " which have copies. Give the stream a method set_epoch(epoch): its shards are made anew in each epoch"
            )

    def _own(self, rank: int, reader: int) -> list[int]:
        return list(range(reader, self.streams, self.readers)[rank :: self.where.of])

    def _source(self, number: int) -> Source:
        return Source(partial(self._made, number))

    def _made(self, number: int) -> Any:
        if self.shard is None:
            return self.dataset
        shard = self.shard(num_shards=self.streams, index=number)
        if self._epoch is not None and hasattr(shard, "set_epoch"):
            shard.set_epoch(self._epoch)  # it may not know the epoch of what it is a shard of
        return shard

    def _slices(
        self, reader: int, source: Source, items: Iterator[Any], again: list[Any], taken: dict[int, int]
    ) -> Iterator[ReadBatch]:
        """Yield the batches of a stream that every rank reads."""
        ring, given, digest = ItemCounts((reader,), taken), 0, None
        if self.tells_first:
            first = list(islice(items, 1))
            digest, items = digest_of(first), chain(first, items)
            self.tells_first = False
        for batch, tail in self.share.slices(items, again, source.at_end()):
            given += self.round if tail is None else sum(map(bool, tail.real)) if self.rows is None else tail.total
            yield ReadBatch(batch, reader, ring, given, tail=tail, first=digest)

    def _in_turn(self, reader: int, sources: Mapping[int, Iterator[Any]], taken: dict[int, int]) -> Iterator[ReadBatch]:
        """Yield the batches of the shards of this rank, the last filled up from the start of the epoch."""
        rows, elements, first = self.rows or 1, self.rows is None, list[Any]()
        round_robin = RoundRobin(sources, taken)
        hidden = self.shard is not None and get_worker_info() is not None
        take = partial(unseen_worker, round_robin.take) if hidden else round_robin.take
        while samples := take(rows):
            tail, count, first = None, len(samples), first or samples
            if count < rows:
                if self.ending is Ending.DROP:
                    return
                if self.where.of == 1:
                    tail = BatchPadding((count,), (count,))
                elif self.in_step and self.ending is Ending.REPEAT:
                    samples = [*samples, *islice(cycle(first), rows - count)]
            yield ReadBatch(
                samples[0] if elements else samples, reader, round_robin.ring, round_robin.given, count, tail
            )

    def _with_states(
        self, batches: Iterator[ReadBatch], reader: int, sources: dict[int, Source], before: dict[int, int]
    ) -> Iterator[ReadBatch]:
        for batch in batches:
            taken = batch.taken
            moved = (number for number, source in sources.items() if source.ended or taken[number] != before[number])
            batch.states = {number: sources[number].position for number in moved}  # others are where they were put
            yield batch
        if self.persistent and self._lives_on:
            yield ReadBatch(None, reader, states={number: source.front for number, source in sources.items()}, end=True)

    def front_states(self) -> dict[int, Any]:
        """Return the states of the sources at the start of the next epoch, as far as this process knows them."""
        if self.start is not None:
            return self.start.states
        return {number: source.front for number, source in self._sources.items() if source.stateful}

    @property
    def round(self) -> int:
        """The number of samples, or of elements that are batches, that all ranks take together."""
        return self.where.of * (self.rows or 1)

    @property
    def order_roots(self) -> tuple[Any, ...]:
        """The objects that may have a generator for the order. Draws of a stream that divides itself are its own."""
        return () if self.unit == "readers" else (self.dataset,)

    def begin_at(self, state: LoaderState) -> None:
        """Begin the next epoch at the position of a state, with as many logical shards as the state has.

        Args:
            state: The state of the loader.

        Raises:
            ResumeError: The readers of this world cannot share the shards equally.
        """
        if self.unit == state.unit == "shards":
            shards, ranks, readers = state.streams, self.where.of, self.readers
            if shards < 1 or shards % (ranks * readers):
                fitting = [str(number) for number in range(1, shards + 1) if shards % number == 0]
                raise ResumeError(
                    f"the stream was cut into {shards} logical shards, which {ranks} processes with {readers} readers"
                    " each cannot share equally; continue with processes and loader workers whose product divides"
                    f" {shards}: {', '.join(fitting)}"
                )
            self.streams = shards
        self.start = state.position()
        if self.rank_alone:
            self._sources = {}

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset, if the dataset has epochs."""
        if hasattr(self.dataset, "set_epoch"):
            self._epoch = epoch
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples in the batches of this rank, if the stream knows its length."""
        if not self.rank_alone:
            return len(self.share)
        if self.shard is None:
            return len(self.dataset)
        lengths = [len(self.shard(num_shards=self.streams, index=source)) for source in range(self.streams)]
        rows, drop = self.rows or 1, self.ending is Ending.DROP
        batches = [0] * self.where.of
        for rank, reader in product(range(self.where.of), range(self.readers)):
            samples = sum(lengths[source] for source in self._own(rank, reader))
            batches[rank] += samples // rows if drop else -(-samples // rows)
        if self.ending is Ending.UNEVEN:
            return batches[self.where.index] * rows
        return (min(batches) if drop else max(batches)) * rows
