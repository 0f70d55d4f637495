"""One rank's share of a stream that every rank reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, final

from torch.utils.data import IterableDataset

from accel_data.checks.content_hash import digest_of
from accel_data.iterable.batch_size import samples_in
from accel_data.iterable.read_batch import ReadBatch
from accel_data.iterable.reader import ENDED, Reader, ReaderSettings, opened, state_of
from accel_data.iterable.stateful import is_stateful
from accel_data.resume.loader_state import StreamPosition
from accel_data.sharding.rank_slices import (
    DataRank,
    Ending,
    RankSlice,
    refuse_split,
    slices_in,
    slices_of_batches,
    slices_of_samples,
)


@final
class IterableDatasetShard(IterableDataset[Any]):
    """One rank's samples of an iterable dataset, in slices of the batch size; every rank gets equally many.

    With `batch_size=None` every element is a batch by itself, and ranks take turns.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        *,
        even_batches: bool = True,
        ending: Ending | None = None,
    ) -> None:
        self.where = DataRank(process_index, num_processes)
        if split_batches:
            refuse_split(dataset, batch_size, num_processes)
        self.dataset = dataset
        self.batch_size = batch_size
        self.split_batches = split_batches
        self.ending = ending or Ending.of(drop_last=drop_last, even_batches=even_batches)
        if num_processes == 1 and self.ending is not Ending.DROP:
            self.ending = Ending.UNEVEN

    @property
    def rows(self) -> int | None:
        """Samples in each batch of this rank; None if elements are batches."""
        if self.batch_size is None:
            return None
        return self.batch_size // self.where.of if self.split_batches else self.batch_size

    def __iter__(self) -> Iterator[Any]:
        slices = self.slices(iter(self.dataset))
        if self.rows is None:
            return (one.items for one in slices)
        return chain.from_iterable(one.items for one in slices)

    def slices(self, source: Iterator[Any], first: list[Any] | None = None) -> Iterator[RankSlice[Any]]:
        """This rank's slices of what the source gives from some place on; `first` are the first items of the epoch."""
        start = first or []
        if self.rows is None:
            return slices_of_batches(source, self.where, ending=self.ending, start=start, length=samples_in)
        return slices_of_samples(source, self.where, rows=self.rows, ending=self.ending, start=start)

    def __len__(self) -> int:
        """Samples of this rank, if the dataset knows its length."""
        rows = self.rows or 1
        length = len(self.dataset)
        rounds, left = divmod(length, rows * self.where.of)
        index, of = self.where.index, self.where.of
        if self.ending is Ending.UNEVEN:
            return rounds * rows + min(max(left - index * rows, 0), rows)
        if self.ending is Ending.EXACT:
            return rounds * rows + (max((index + 1) * left // of - index * left // of, 1) if left else 0)
        return slices_in(length, self.where, ending=self.ending, rows=rows) * rows

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)


@final
class WholeReader(Reader):
    """Reads the whole stream, and keeps this rank's slice of each round."""

    def __init__(self, share: IterableDatasetShard, workers: int, *, persistent: bool) -> None:
        self.share = share
        self.dataset = share.dataset
        self.settings = ReaderSettings(share.where, share.rows, share.ending, workers, persistent)
        self._stateful = is_stateful(self.dataset)

    @property
    def unit(self) -> str:
        """As `Reader`."""
        return "samples" if self.settings.rows is not None else "batches"

    @property
    def streams(self) -> int:
        """As `Reader`: one place for each loader worker."""
        return self.settings.readers

    @property
    def rank_alone(self) -> bool:
        """As `Reader`."""
        return False

    @property
    def tells_end(self) -> bool:
        """As `Reader`."""
        return self._stateful and self.settings.persistent

    def cut_into(self, streams: int) -> None:
        """As `Reader`: another number of loader workers is refused before."""

    def read(self, reader: int, start: StreamPosition) -> Iterator[ReadBatch]:
        """As `Reader`."""
        source, first = opened(self.dataset, start.taken.get(reader, 0), start.states.get(reader), keep=self.round)
        return self._batches(source, first, reader)

    def _batches(self, source: Iterator[Any], again: list[Any], reader: int) -> Iterator[ReadBatch]:
        given, each, rows = 0, self.round, self.settings.rows
        digest = None
        if self.tells_first:
            begun = list(islice(source, 1))
            digest, source = digest_of(begun), chain(begun, source)
            self.tells_first = False
        slices = self.share.slices(source, again)
        for items, tail in slices:
            given += each if tail is None else tail.total if rows is not None else sum(map(bool, tail.real))
            batch = ReadBatch(items, reader, given, 0, tail, first=digest)
            if self._stateful:
                short = tail is not None or (rows is not None and len(items) < rows)
                batch.states = {reader: ENDED if short else state_of(self.dataset)}
            yield batch
        if self.tells_end:
            yield ReadBatch(None, reader, states={reader: state_of(self.dataset)}, end=True)

    def counts(self, reader: int, given: int, before: dict[int, int]) -> dict[int, int]:
        """As `Reader`."""
        return {reader: before.get(reader, 0) + given}

    def current_states(self) -> dict[int, Any]:
        """As `Reader`."""
        if not self._stateful:
            return {}
        return dict.fromkeys(range(self.settings.readers), state_of(self.dataset))

    def __len__(self) -> int:
        return len(self.share)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        self.share.set_epoch(epoch)
