"""Settings that scripts pass as objects."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DataLoaderConfiguration:
    """How prepared loaders share data; see `accel_data.prepare_data_loader` for each field."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    ending: str | None = None
    check_datasets: bool = True
    ledger: str | Path | None = None
