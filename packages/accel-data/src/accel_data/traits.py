"""Read from a DataLoader the facts by which ranks can share it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from accel_data.iterable.webdataset import shuffles_unseeded, url_shards
from accel_data.sharding.samplers import follows_torch, generator_owner, innermost_sampler
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

#: what makes a shard; called with `num_shards` and `index`
Shard = Callable[..., Any]
#: names by which code asks for its rank
RANK_NAMES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "get_rank", "get_ordinal"}
RANK_NAMES |= {"process_index", "local_process_index", "split_by_node", "split_dataset_by_node"}


@dataclass(frozen=True, slots=True)
class LoaderTraits:
    """The facts about a DataLoader that decide how ranks share it.

    Args:
        dataset: Name of the class of the dataset.
        stream: Whether the dataset is a stream, and not map-style.
        batch_size: Samples of a batch, or None if batches vary, or if the loader does not batch.
        drop_last: Whether samples that do not fill a batch are dropped.
        by_sample: Whether batches are cut from an order of samples, as torch's BatchSampler does.
        workers: Number of loader workers.
        shards: Number of shards that a stream says it has, or None.
        shardable: Whether a stream can be cut into shards.
        drawn_by: Name of the class that has a `generator` to draw the order from, or None.
        seeded: Whether that generator, or a seed, is given.
        distributed: Whether a DistributedSampler has sharded the data already.
        rank_names: Names by which the code of a stream asks for its rank.
        unseeded_shuffle: Whether a pipeline of webdataset shuffles without a seed.
    """

    dataset: str = "Dataset"
    stream: bool = False
    batch_size: int | None = 1
    drop_last: bool = False
    by_sample: bool = True
    workers: int = 0
    shards: int | None = None
    shardable: bool = False
    drawn_by: str | None = None
    seeded: bool = False
    distributed: bool = False
    rank_names: tuple[str, ...] = ()
    unseeded_shuffle: bool = False


def traits_of(loader: DataLoader[Any], sampler: Any = None) -> LoaderTraits:
    """Return the facts about a loader, without reading a sample.

    Args:
        loader: The loader.
        sampler: The batch sampler, or the sampler of a loader that does not batch, in place of the loader's own one.
    """
    dataset, sampler = loader.dataset, sampler_of(loader) if sampler is None else sampler
    stream, inner = isinstance(dataset, IterableDataset), innermost_sampler(sampler)
    owner = generator_owner(dataset if stream else sampler)
    shards, shard = shards_of(dataset) if stream else (None, None)
    return LoaderTraits(
        dataset=type(dataset).__name__,
        stream=stream,
        batch_size=loader.batch_size if stream else getattr(sampler, "batch_size", None),
        drop_last=bool(getattr(sampler, "drop_last", loader.drop_last)),
        by_sample=stream or follows_torch(sampler),
        workers=loader.num_workers,
        shards=shards,
        shardable=shard is not None,
        drawn_by=None if owner is None else type(owner).__name__,
        seeded=isinstance(inner, SeedableRandomSampler) or (owner is not None and owner.generator is not None),
        distributed=isinstance(inner, DistributedSampler),
        rank_names=_rank_names(dataset) if stream else (),
        unseeded_shuffle=stream and shuffles_unseeded(dataset),
    )


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return the batch sampler of a loader, or its sampler if it does not batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def shards_of(dataset: Any) -> tuple[int | None, Shard | None]:
    """Return the number of shards that a stream has, and the function that makes them.

    Returns:
        The number is None if the stream does not say it, and the function is None if the stream cannot be sharded.
    """
    by_urls = url_shards(dataset)
    if by_urls is not None:
        return by_urls
    shard = getattr(dataset, "shard", None)
    if not callable(shard) or not {"num_shards", "index"} <= set(inspect.signature(shard).parameters):
        return None, None
    own = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    return own if isinstance(own, int) and not isinstance(own, bool) else None, shard


def _rank_names(dataset: object) -> tuple[str, ...]:
    """Return the names in the code that iterates over a stream by which it may ask for its rank."""
    method = getattr(type(dataset), "__iter__", None)
    return tuple(sorted(_names(getattr(method, "__code__", None)) & RANK_NAMES))


def _names(code: CodeType | None) -> set[str]:
    """Return the names and texts in a function, and in those inside of it."""
    if code is None:
        return set()
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return texts.union(code.co_names, *inner)
