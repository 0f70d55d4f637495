"""Prepare loaders for the run of this process, by the arguments that scripts give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import accel_data
import torch
from accel_data import DataLoaderShard
from accel_ops import RNGType
from accel_state import PartialState
from torch.utils.data import BatchSampler, DataLoader

Batch = TypeVar("Batch")


class SkipBatchSampler(BatchSampler):
    """The batches of another batch sampler without the first `skip_batches`."""

    def __init__(self, batch_sampler: BatchSampler, skip_batches: int = 0) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches
        self.batch_size, self.drop_last = batch_sampler.batch_size, batch_sampler.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batch_sampler), self.skip_batches, None)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skip_batches, 0)


class SkipDataLoader(DataLoaderShard[Batch]):
    """A loader whose passes lack the first batches.

    Args:
        dataset: The dataset.
        skip_batches: How many batches a pass lacks.
        **more: Arguments of `DataLoaderShard`.
    """

    def __init__(self, dataset: Any, skip_batches: int = 0, **more: Any) -> None:
        super().__init__(dataset, skip_batches=skip_batches, **more)


def prepare_data_loader(
    dataloader: DataLoader[Batch],
    device: torch.device | str | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Iterable[str | RNGType] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
    **more: Any,
) -> DataLoader[Batch]:
    """Return the loader of a process.

    Args:
        dataloader: The loader to share out.
        device: Where batches are put; by default the device of the run.
        num_processes: How many processes share the batches; by default those of the run. With other numbers than the
            run's, each process draws random orders for itself.
        process_index: Which of them this is; by default its rank.
        split_batches: Whether the batch size is that of all processes together.
        put_on_device: Whether batches are moved to the device.
        rng_types: The random generators that are made equal at the start of each pass.
        dispatch_batches: Whether the main process reads for all; None leaves the choice to the dataset.
        even_batches: Whether samples are repeated until all processes have as many.
        slice_fn_for_dispatch: None: batches are cut along dim 0.
        use_seedable_sampler: Whether shuffled orders are drawn from a seed and the number of the epoch.
        data_seed: The seed.
        non_blocking: Whether batches are copied while the program goes on.
        use_stateful_dataloader: Whether the loader is an instance of torchdata's `StatefulDataLoader` too.
        torch_device_mesh: Not used: the mesh is that of the run.
        **more: Further arguments of `accel_data.prepare_data_loader`.

    Raises:
        ValueError: For a `slice_fn_for_dispatch`, and as `accel_data.prepare_data_loader`.

    Collective:
        Every process must prepare and iterate alike.
    """
    if slice_fn_for_dispatch is not None:
        raise ValueError("slice_fn_for_dispatch: batches are cut along dim 0; cut them otherwise in the collate_fn")
    run = PartialState().run
    place = run.data_transport
    size = place.size if num_processes is None else num_processes
    rank = place.rank % size if process_index is None and size > 0 else process_index
    if (size, rank) == (place.size, place.rank):
        more.setdefault("transport", place)
    return accel_data.prepare_data_loader(
        dataloader,
        run.placed_on if device is None else device,
        size,
        rank,
        split_batches,
        put_on_device,
        rng_types,
        dispatch_batches,
        even_batches,
        use_seedable_sampler,
        data_seed,
        non_blocking,
        hardware=run.device,
        use_stateful_dataloader=use_stateful_dataloader,
        **more,
    )
