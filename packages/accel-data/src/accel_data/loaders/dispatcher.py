"""A DataLoader that only rank 0 reads, and the others receive their parts of."""

from __future__ import annotations

from typing import Any, TypeVar, final

from accel_comm import Transport
from accel_state import PartialState, is_initialized

from accel_data.loaders.loader import DataLoaderShard
from accel_data.plan import LoaderPlan

Batch = TypeVar("Batch")


@final
class DataLoaderDispatcher(DataLoaderShard[Batch]):
    """A DataLoader that only rank 0 reads, as one process would, and that sends each rank its part.

    Args:
        dataset: The dataset, or the reader of a stream.
        split_batches: Divide each batch among the ranks; otherwise as many batches as ranks make a round.
        transport: Transport of the ranks that share the data. One process needs none.
        plan: How ranks share the data. One process needs none.
        **settings: Further arguments of `DataLoaderShard`.

    Raises:
        ValueError: There are several processes, and no plan.

    Collective:
        Every rank must take part in each epoch, from its start to its end, and in `state_dict`.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        *,
        transport: Transport | None = None,
        plan: LoaderPlan | None = None,
        **settings: Any,
    ) -> None:
        size = transport.size if transport is not None else PartialState().num_processes if is_initialized() else 1
        if plan is None and size > 1:
            raise ValueError(
                f"DataLoaderDispatcher made by hand for {size} processes: it needs the plan of all of"
                " them; call accelerator.prepare or prepare_data_loader with dispatch_batches=True"
            )
        super().__init__(dataset, plan=plan, transport=transport, **settings)
        self.split_batches = split_batches or self.plan.split_batches
        if self.split_batches and self.share is not None:  # a script may change the batch size later
            self.share.divided_by = size
