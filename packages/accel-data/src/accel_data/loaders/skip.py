"""A loader without its first batches."""

from __future__ import annotations

from typing import TypeVar, cast

from torch.utils.data import DataLoader

from accel_data.loaders.loader import DataLoaderShard
from accel_data.prepare import prepare_data_loader
from accel_data.sharding.batch_sampler_shard import innermost_sampler
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

Batch = TypeVar("Batch")


def skip_first_batches(dataloader: DataLoader[Batch], num_batches: int = 0) -> DataLoader[Batch]:
    """A loader whose passes are those of `dataloader` without this rank's first `num_batches` batches.

    Samples of a map-style dataset that are skipped are not read; those of a stream are. Passes of both are counted
    together. After `load_state_dict` of a prepared loader there is nothing to skip.

    Raises: ValueError for a negative number; TypeError for what is no DataLoader.
    """
    if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 0:
        raise ValueError(f"num_batches={num_batches!r}: expected a whole number of at least 0")
    if isinstance(dataloader, DataLoaderShard):
        return dataloader.without_first(num_batches)
    ready = cast("DataLoaderShard[Batch]", prepare_data_loader(dataloader, num_processes=1, process_index=0))
    sampler = innermost_sampler(dataloader)
    if isinstance(sampler, SeedableRandomSampler):
        ready.set_epoch(sampler.epoch)
    return ready.without_first(num_batches)
