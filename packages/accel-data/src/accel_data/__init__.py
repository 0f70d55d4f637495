"""Shards any PyTorch DataLoader for a rank and a world size."""

from accel_data.dispatch import DataLoaderDispatcher
from accel_data.iterable import IterableDatasetShard
from accel_data.loader import DataLoaderShard
from accel_data.plan import DataRank, Ending
from accel_data.prepare import prepare_data_loader
from accel_data.rng import RNGType, set_seed, synchronize_rng_state, synchronize_rng_states
from accel_data.samplers import BatchSamplerShard, SeedableRandomSampler

__all__ = [
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataRank",
    "Ending",
    "IterableDatasetShard",
    "RNGType",
    "SeedableRandomSampler",
    "prepare_data_loader",
    "set_seed",
    "synchronize_rng_state",
    "synchronize_rng_states",
]
