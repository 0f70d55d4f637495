"""A DataLoader that only rank 0 reads, and the others receive their parts of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, final

from accel_comm import Transport
from accel_ops.rng import RNGType
from accel_state import Device

from accel_data.iterable.reader import Reader
from accel_data.loaders.dispatch import Dispatch
from accel_data.loaders.loader import DataLoaderShard
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split

Batch = TypeVar("Batch")


@final
class DataLoaderDispatcher(DataLoaderShard[Batch]):
    """A DataLoader that only rank 0 reads, as one process would, and that sends each rank its part.

    Args:
        dataset: The dataset, or the reader of a stream.
        split_batches: Divide each batch among the ranks; otherwise as many batches as ranks make a round.
        transport: Transport of the ranks that share the data.
        ending: What happens to samples that do not fill a round.
        rng_types: Generators to make equal on all ranks in each epoch.
        hardware: Device of this process.
        **settings: Further arguments of `DataLoaderShard`.

    Raises:
        ValueError: `split_batches` cannot divide the batch size.

    Collective:
        Every rank must take part in each epoch, from its start to its end, and in `state_dict`.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        *,
        transport: Transport,
        ending: Ending = Ending.REPEAT,
        rng_types: Iterable[str | RNGType] | None = None,
        hardware: Device | None = None,
        **settings: Any,
    ) -> None:
        together = 1 if split_batches else transport.size
        if isinstance(dataset, Reader) and not settings.get("num_workers"):
            dataset.at_a_time = together  # workers take turns batch by batch, and the order would be another one
        super().__init__(
            dataset,
            where=DataRank(transport.rank, transport.size),
            ending=ending,
            dispatch=Dispatch(transport, together, ending, rng_types or (), hardware, settings.get("device")),
            hardware=hardware,
            **settings,
        )
        if split_batches:
            refuse_split(self._source, self._source.rows, transport.size)
            if self.share is not None:  # a script may change the batch size later
                self.share.divided_by = transport.size
        self.split_batches = split_batches
