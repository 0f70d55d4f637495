"""One rank's share of a stream that every rank reads."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from accel_data.marks import Mark, Marked
from accel_data.plan import DataRank, Ending, Part, deal_batches, deal_samples, parts_in, refuse_split
from accel_data.samples import samples_in


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where the readers of a stream begin: samples taken of each, and what each source said of its place."""

    taken: tuple[int, ...]
    states: tuple[Any, ...]


def is_stateful(dataset: object) -> bool:
    """Whether a dataset can say where it stands and be put there again."""
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


#: the state of a source that has given all it has; its own may be that of its front again
ENDED = {"ended": "all of it was served"}


class IterableDatasetShard(IterableDataset[Any]):
    """One rank's samples of an iterable dataset, in slices of the batch size; every rank gets equally many.

    With `batch_size=None` every element is a batch by itself, and ranks take turns. With `mark` the first sample of a
    batch comes as `Marked` where there is something to tell.
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
        mark: bool = False,
    ) -> None:
        self.where = DataRank(process_index, num_processes)
        if split_batches:
            refuse_split(dataset, batch_size, num_processes)
        self.dataset = dataset
        self.batch_size = batch_size
        self.split_batches = split_batches
        self.mark = mark
        self.ending = ending or Ending.of(drop_last=drop_last, even_batches=even_batches)
        if num_processes == 1 and self.ending is not Ending.DROP:
            self.ending = Ending.UNEVEN
        #: where the next pass begins, if not at the front
        self.start: StreamStart | None = None

    @property
    def rows(self) -> int | None:
        """Samples in each batch of this rank; None when elements are batches."""
        if self.batch_size is None:
            return None
        return self.batch_size // self.where.of if self.split_batches else self.batch_size

    @property
    def round(self) -> int:
        """Samples, or elements that are batches, that all ranks take together."""
        return self.where.of * (self.rows or 1)

    @property
    def marks(self) -> bool:
        """Whether batches can come with a mark at all, when they are read in this process or one worker."""
        return self.mark and (self.where.of > 1 or is_stateful(self.dataset))

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, None  # a worker that lives on must not start there again
        worker = get_worker_info()
        stream, tells_stream = (worker.id, worker.num_workers > 1) if worker is not None else (0, False)
        tells_state = self.mark and is_stateful(self.dataset)
        if self.where.of == 1 and start is None and not (self.mark and tells_stream) and not tells_state:
            return iter(self.dataset)
        source, first = self._source(stream, start)
        dealt = self._dealt(source, first, stream, tells_stream=tells_stream, tells_state=tells_state)
        return chain.from_iterable(dealt)

    def _dealt(
        self, source: Iterator[Any], first: list[Any], stream: int, *, tells_stream: bool, tells_state: bool
    ) -> Iterator[list[Any]]:
        for part in self._parts(source, first):
            items = [part.items] if self.rows is None else part.items
            if self.mark and (part.tail is not None or tells_stream or tells_state):
                state = None
                if tells_state:
                    short = part.tail is not None or (self.rows is not None and len(items) < self.rows)
                    # a copy: a dataset may go on with the very object that it told
                    state = ENDED if short else copy.deepcopy(self.dataset.state_dict())
                items[0] = Marked(items[0], Mark(part.tail, stream, state=state))
            yield items

    def _source(self, stream: int, start: StreamStart | None) -> tuple[Iterator[Any], list[Any]]:
        if start is None:
            return iter(self.dataset), []
        if start.states[stream] == ENDED:
            return iter(()), []
        if start.states[stream] is not None and is_stateful(self.dataset):
            self.dataset.load_state_dict(start.states[stream])
            return iter(self.dataset), []
        source = iter(self.dataset)
        first = list(islice(source, min(start.taken[stream], self.round)))
        deque(islice(source, start.taken[stream] - len(first)), maxlen=0)
        # one item more, here and now: with it a stream draws its order, if it draws from a global generator
        return chain(list(islice(source, 1)), source), first

    def _parts(self, source: Iterator[Any], first: list[Any]) -> Iterator[Part[Any]]:
        if self.rows is None:
            return deal_batches(source, self.where, rows=None, ending=self.ending, start=first, length=samples_in)
        return deal_samples(source, self.where, rows=self.rows, ending=self.ending, start=first)

    def __len__(self) -> int:
        """Samples of this rank, when the dataset knows its length."""
        rows = self.rows or 1
        length = len(self.dataset)
        if self.ending is Ending.UNEVEN:
            rounds, left = divmod(length, rows * self.where.of)
            return rounds * rows + min(max(left - self.where.index * rows, 0), rows)
        if self.ending is Ending.EXACT:
            rounds, left = divmod(length, rows * self.where.of)
            index, of = self.where.index, self.where.of
            return rounds * rows + (max((index + 1) * left // of - index * left // of, 1) if left else 0)
        return parts_in(length, self.where, ending=self.ending, rows=rows) * rows

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
