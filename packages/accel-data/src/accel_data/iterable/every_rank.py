"""Cut the share of one rank out of a stream that every rank reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, final

from accel_ops.batch_size import samples_in
from torch.utils.data import IterableDataset

from accel_data.sharding.rank_slices import (
    DataRank,
    Ending,
    RankSlice,
    refuse_split,
    slices_of_batches,
    slices_of_samples,
)


@final
class IterableDatasetShard(IterableDataset[Any]):
    """The samples of one rank of an iterable dataset, in slices of the batch size.

    Every rank reads the whole dataset and keeps its slices. Unless `ending` is `Ending.UNEVEN`, every rank gets equally
    many.

    Args:
        dataset: The iterable dataset, which gives one order on every rank.
        batch_size: Samples of a slice, or None if every element is a batch by itself, of which ranks take turns.
        drop_last: Drop samples at the end that do not fill a round of all ranks.
        num_processes: Number of ranks that share the dataset.
        process_index: Rank of this process among them.
        split_batches: Divide `batch_size` among the ranks.
        even_batches: Give all ranks equally many samples, some of them again.
        ending: What happens to samples that do not fill a round; it replaces `drop_last` and `even_batches`.

    Raises:
        ValueError: The rank does not exist, or `split_batches` cannot divide the batch size.
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
        """The number of samples in each batch of this rank, or None if elements are batches."""
        ranks = self.where.of if self.split_batches else 1
        return None if self.batch_size is None else self.batch_size // ranks

    def __iter__(self) -> Iterator[Any]:
        return self._dealt(self.dataset)

    def _dealt(self, stream: Iterable[Any]) -> Iterator[Any]:
        items = (part.items for part in self.slices(stream))
        return items if self.rows is None else chain.from_iterable(items)

    def slices(
        self, stream: Iterable[Any], start: Sequence[Any] = (), at_end: Iterable[Any] = ()
    ) -> Iterator[RankSlice[Any]]:
        """Return the slices of this rank, as `slices_of_samples`, or as `slices_of_batches` without `rows`.

        Args:
            stream: Samples or batches, from the position on at which the epoch is resumed.
            start: The first round of the epoch, if the stream begins later.
            at_end: An iterable without items, read when the stream has no more.
        """
        same: Any = {"ending": self.ending, "start": start, "at_end": at_end}
        if self.rows is None:
            return slices_of_batches(stream, self.where, length=samples_in, **same)
        return slices_of_samples(stream, self.where, rows=self.rows, **same)

    def __len__(self) -> int:
        """Return the number of samples of this rank, if the dataset knows its length."""
        rows = self.rows or 1
        rounds, left = divmod(len(self.dataset), rows * self.where.of)
        return rounds * rows + sum(1 for _ in self._dealt(range(left)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset, if the dataset has epochs."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
