"""One rank's share of an iterable dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from accel_ops import recursively_apply
from accel_state import Tail
from torch.utils.data import IterableDataset

from accel_data.plan import DataRank, Ending, deal_batches, deal_samples, parts_in, refuse_split


@dataclass(frozen=True, slots=True)
class Tailed:
    """A sample or batch on its way from a loader worker, with what is real in the round that it belongs to."""

    value: Any
    tail: Tail

    def pin_memory(self) -> Tailed:
        """The same in pinned memory; torch calls this for types that it does not know."""
        return Tailed(recursively_apply(lambda tensor: tensor.pin_memory(), self.value), self.tail)


class TailedCollate:
    """A `collate_fn` that unpacks the samples of a filled-up round, and packs their batch again."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        if isinstance(samples, Tailed):  # a loader that does not batch passes one sample at a time
            return Tailed(self.collate(samples.value), samples.tail)
        if isinstance(samples, list) and samples and isinstance(samples[0], Tailed):
            return Tailed(self.collate([sample.value for sample in samples]), samples[0].tail)
        return self.collate(samples)


class IterableDatasetShard(IterableDataset[Any]):
    """One rank's samples of an iterable dataset, in slices of the batch size; every rank gets equally many.

    With `batch_size=None` every element is a batch by itself, and ranks take turns. With `mark_tail` samples of a round
    that was filled up come as `Tailed`.
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
        mark_tail: bool = False,
    ) -> None:
        self.where = DataRank(process_index, num_processes)
        if split_batches:
            refuse_split(dataset, batch_size, num_processes)
        self.dataset = dataset
        self.batch_size = batch_size
        self.split_batches = split_batches
        self.mark_tail = mark_tail
        self.ending = Ending.of(drop_last=drop_last, even_batches=even_batches)

    @property
    def rows(self) -> int | None:
        """Samples in each batch of this rank; None when elements are batches."""
        if self.batch_size is None:
            return None
        return self.batch_size // self.where.of if self.split_batches else self.batch_size

    def __iter__(self) -> Iterator[Any]:
        if self.rows is None:
            for element in deal_batches(self.dataset, self.where, rows=None, ending=self.ending):
                yield self._marked(element.items, element.tail)
            return
        for part in deal_samples(self.dataset, self.where, rows=self.rows, ending=self.ending):
            if part.tail is None:
                yield from part.items
            else:
                yield from (self._marked(sample, part.tail) for sample in part.items)

    def _marked(self, value: Any, tail: Tail | None) -> Any:
        return Tailed(value, tail) if self.mark_tail and tail is not None else value

    def __len__(self) -> int:
        """Samples of this rank, when the dataset knows its length."""
        rows = self.rows or 1
        length = len(self.dataset)
        if self.ending is Ending.UNEVEN:
            rounds, left = divmod(length, rows * self.where.of)
            return rounds * rows + min(max(left - self.where.index * rows, 0), rows)
        return parts_in(length, self.where, ending=self.ending, rows=rows) * rows

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to a dataset that takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
