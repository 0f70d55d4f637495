"""A batch sampler with the share of one rank of another sampler's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import chain
from typing import Any

from torch.utils.data import BatchSampler

from accel_data.sharding.index_order import IndexOrder, LazyOrder, draw
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split, slices_in
from accel_data.sharding.samplers import follows_torch, samplers_under


class BatchSamplerShard(BatchSampler):
    """The batches of one rank of a batch sampler.

    They are every `num_processes`-th batch, or with `split_batches` a slice of each. Only indices of this rank are
    turned into samples.

    Args:
        batch_sampler: A batch sampler, or a sampler if the loader does not batch.
        num_processes: Number of ranks that share the data.
        process_index: Rank of this process among them.
        split_batches: Divide each batch among the ranks.
        even_batches: Give all ranks equally many batches.
        ending: What happens to samples that do not fill a round of all ranks. If it is left out, it follows from
            `even_batches` and from `drop_last` of the batch sampler.

    Raises:
        ValueError: The rank does not exist, or `split_batches` cannot divide the batch size.
    """

    #: how many positions a state has besides the number of items, and whether ranks have positions of their own
    streams, rank_alone = 0, False

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
        *,
        ending: Ending | None = None,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.where = DataRank(process_index, num_processes)
        self.split_batches = split_batches
        #: number of ranks that divide each batch, or None
        self.divided_by = num_processes if split_batches else None
        self._refuse_split()
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        self.ending = ending or Ending.of(drop_last=self.drop_last, even_batches=even_batches)
        if num_processes == 1:  # alone, batches are what the batch sampler says
            self.ending = Ending.DROP if self.ending is Ending.DROP and follows_torch(batch_sampler) else Ending.UNEVEN
        self._made_with = (even_batches, self.ending)
        #: the order of the newest epoch, drawn with the first call
        self.newest: Callable[[], IndexOrder] = partial(self.draw, 0)
        #: called before each order is drawn
        self.before_draw: Callable[[], None] | None = None
        #: the item of the order at which epochs begin
        self.skip = 0

    @property
    def sampler(self) -> Any:
        """The sampler under the batch sampler, or the sampler of a loader that does not batch."""
        return getattr(self.batch_sampler, "sampler", self.batch_sampler)

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        self.batch_sampler.sampler = sampler

    @property
    def batch_size(self) -> Any:
        """The batch size of the batch sampler, or None if it has none."""
        return getattr(self.batch_sampler, "batch_size", None)

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self.batch_sampler.batch_size = size

    @property
    def even_batches(self) -> bool:
        """True if ranks get equally many batches.

        It is the argument of the constructor, unless `ending` was changed since.
        """
        even_batches, ending = self._made_with
        return even_batches if self.ending is ending else self.ending is not Ending.UNEVEN

    @property
    def rows(self) -> int | None:
        """The number of samples in each batch of this rank, or None if it varies."""
        if self.batch_size is None:
            return None
        return int(self.batch_size) // self.where.of if self.split_batches else int(self.batch_size)

    @property
    def unit(self) -> str:
        """The unit of the order: "samples", or "batches" that stay whole."""
        by_sample = follows_torch(self.batch_sampler) or self.split_batches
        return "samples" if self.rows is not None and by_sample else "batches"

    @property
    def round(self) -> int:
        """The number of items of the order that all ranks take together."""
        return self.where.of * (self.rows or 1) if self.unit == "samples" else self.where.of

    @property
    def total_length(self) -> int:
        """The number of batches of the whole job."""
        return len(self.batch_sampler)

    @property
    def order_roots(self) -> tuple[Any, ...]:
        """The objects that may have a generator for the order."""
        return (self,)

    def front_states(self) -> dict[int, Any]:
        """Return the states of sources, of which a map-style dataset has none."""
        return {}

    def begin_at(self, state: object) -> None:
        """Do nothing: the cursor of an epoch begins at the position of a state."""

    def __iter__(self) -> Iterator[Any]:
        self.newest = order = cache(partial(self.draw, self.skip))
        # loops in C: a chain of generators would cost each batch a frame for every link
        return chain.from_iterable(chain.from_iterable(self._dealt(order)))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"newest": partial(self.draw, 0)}  # an order that is dealt stays with its epoch

    def _dealt(self, order: Callable[[], IndexOrder]) -> Iterator[Iterator[Iterable[Any]]]:
        # the order is drawn with the first batch, as torch's samplers do
        yield order().deal(self.where, rows=self.rows, ending=self.ending)

    def __len__(self) -> int:
        if follows_torch(self.batch_sampler) and self.rows is not None:
            return slices_in(len(self.batch_sampler.sampler), self.where, ending=self.ending, rows=self.rows)
        batches = len(self.batch_sampler)
        return batches if self.split_batches else slices_in(batches, self.where, ending=self.ending)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of every sampler under this one that has epochs."""
        for owner in samplers_under(self.batch_sampler):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def draw(self, skip: int) -> IndexOrder:
        """Draw the order of the next epoch.

        Args:
            skip: Items of the order to skip.
        """
        if bool(getattr(self.batch_sampler, "drop_last", False)) is not self.drop_last:
            raise ValueError(
                f"drop_last of {type(self.batch_sampler).__name__} was changed after prepare, which has decided by it"
                " how epochs end; say drop_last in the DataLoader before prepare"
            )
        self._refuse_split()
        if self.before_draw is not None:
            self.before_draw()
        if self.rows is not None and follows_torch(self.batch_sampler):
            return draw(self.batch_sampler.sampler, skip, self.round)
        if self.unit == "samples":
            return LazyOrder(chain.from_iterable(self.batch_sampler), skip, self.round)
        return LazyOrder(iter(self.batch_sampler), skip, self.round, whole=True)

    def _refuse_split(self) -> None:
        if self.divided_by is not None:
            refuse_split(self.batch_sampler, self.batch_size, self.divided_by)
