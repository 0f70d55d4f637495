"""The prepared loaders, under the path that scripts import them from."""

from accel_data import BatchSamplerShard as BatchSamplerShard
from accel_data import DataLoaderDispatcher as DataLoaderDispatcher
from accel_data import DataLoaderShard as DataLoaderShard
from accel_data import IterableDatasetShard as IterableDatasetShard
from accel_data import SeedableRandomSampler as SeedableRandomSampler
from accel_data import skip_first_batches as skip_first_batches
from accel_data.loaders.state_mixin import DataLoaderStateMixin as DataLoaderStateMixin
from accel_names.loaders import SkipBatchSampler as SkipBatchSampler
from accel_names.loaders import SkipDataLoader as SkipDataLoader
from accel_names.loaders import prepare_data_loader as prepare_data_loader
