"""A DataLoader that only rank 0 reads; the others receive their part of each round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, final

from accel_ops.rng import RNGType
from accel_state import Device, Transport

from accel_data.iterable.reader import Reader
from accel_data.loaders.dispatch import Dispatch
from accel_data.loaders.loader import DataLoaderShard
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split

Batch = TypeVar("Batch")


@final
class DataLoaderDispatcher(DataLoaderShard[Batch]):
    """A DataLoader that only rank 0 reads, as one process would; each other rank receives its part of each round.

    Collective: every rank must take part in each pass, from its start to its end, and in `state_dict`.
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
        self.split_batches = split_batches
