"""Shard any PyTorch DataLoader for a rank and a world size."""

from accel_ops.fingerprint import Fingerprint, check_same_dataset, fingerprint

from accel_data.iterable.every_rank import IterableDatasetShard
from accel_data.loaders.dispatcher import DataLoaderDispatcher
from accel_data.loaders.loader import DataLoaderShard
from accel_data.plan import LoaderPlan
from accel_data.prepare import prepare_data_loader, skip_first_batches
from accel_data.resume.consumption_log import ConsumptionLog
from accel_data.resume.loader_state import ResumeError
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard
from accel_data.sharding.rank_slices import DataRank, Ending
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

__all__ = [
    "BatchSamplerShard",
    "ConsumptionLog",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataRank",
    "Ending",
    "Fingerprint",
    "IterableDatasetShard",
    "LoaderPlan",
    "ResumeError",
    "SeedableRandomSampler",
    "check_same_dataset",
    "fingerprint",
    "prepare_data_loader",
    "skip_first_batches",
]
