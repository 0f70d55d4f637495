"""Turns any DataLoader into the one of this rank."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from accel_state import Device, StepClock, Transport
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from accel_data.dispatch import DataLoaderDispatcher
from accel_data.iterable import IterableDatasetShard, TailedCollate
from accel_data.loader import DataLoaderShard
from accel_data.order import FollowRankZero, generator_owner
from accel_data.plan import DataRank
from accel_data.rebuild import settings_of
from accel_data.rng import RNGType, WorkerSeed, rng_types_of
from accel_data.samplers import BatchSamplerShard, SeedableRandomSampler, innermost_sampler

Batch = TypeVar("Batch")


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
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    *,
    transport: Transport | None = None,
    hardware: Device | None = None,
    clock: StepClock | None = None,
) -> DataLoader[Batch]:
    """A loader that serves rank `process_index` of `num_processes` its share of what `dataloader` would serve alone.

    Nothing is drawn from any random generator. Ranks that shuffle need one order: the transport makes them follow rank
    0; without one give every rank a generator with the same seed, or `use_seedable_sampler` with a `data_seed`.

    A stream is read by rank 0 alone and dispatched, unless it has a `generator` that can be synchronised or
    `dispatch_batches=False` promises that it comes in one order everywhere; then each rank reads it and keeps its part.

    Raises: TypeError for what is no DataLoader or cannot be re-created; ValueError for settings that contradict.
    Collective: with a transport, every rank must prepare and iterate alike.
    """
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"only a torch.utils.data.DataLoader can be prepared, found a {type(dataloader).__name__}")
    where = _where(num_processes, process_index, transport)
    rng_types = rng_types_of(rng_types or ())
    target = device if put_on_device else None
    settings = settings_of(dataloader)
    shared: dict[str, Any] = {"clock": clock, "device": target, "non_blocking": non_blocking}
    _refuse_sharded_already(dataloader, where)
    if dispatch_batches is None:
        dispatch_batches = even_batches and _only_one_may_read(dataloader, transport)
    if dispatch_batches:
        if transport is None or where.of != transport.size:
            raise ValueError("dispatch_batches=True sends batches between processes: it needs their transport")
        if not even_batches:
            raise ValueError(
                "dispatch_batches=True gives all processes equal parts of each batch, and even_batches=False asks for"
                " unequal ones; give one of them up"
            )
        if transport.size > 1:
            batching = _batching_of(dataloader)
            shared |= {"rng_types": rng_types, "hardware": hardware}
            return DataLoaderDispatcher(
                dataloader.dataset, split_batches, transport=transport, **shared, **settings, **batching
            )
    if isinstance(dataloader.dataset, IterableDataset):
        return _stream(dataloader, where, split_batches, even_batches, rng_types, transport, hardware, settings, shared)

    if where.index > 0 and settings["num_workers"] > 0 and RNGType.TORCH not in rng_types:
        settings["worker_init_fn"] = WorkerSeed(where.index, settings["worker_init_fn"])
    sampler: Any = dataloader.batch_sampler if dataloader.batch_sampler is not None else dataloader.sampler
    if use_seedable_sampler:
        sampler = _seedable(sampler, data_seed, transport)
    follow = _follow(sampler, where, transport, rng_types)
    if where.of > 1:
        sampler = BatchSamplerShard(sampler, where.of, where.index, split_batches, even_batches, synchronize=follow)
    kind = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    if kind == "sampler":
        settings["batch_size"] = None
    return DataLoaderShard(
        dataloader.dataset,
        rng_types=rng_types,
        transport=transport,
        hardware=hardware,
        **shared,
        **settings,
        **{kind: sampler},
    )


def _where(num_processes: int | None, process_index: int | None, transport: Transport | None) -> DataRank:
    if transport is None and (num_processes is None) != (process_index is None) and (num_processes or 2) > 1:
        raise ValueError(
            f"num_processes={num_processes} and process_index={process_index}: a rank's share needs both; pass both, or"
            " a transport"
        )
    of = num_processes if num_processes is not None else transport.size if transport is not None else 1
    index = process_index if process_index is not None else transport.rank if transport is not None else 0
    if of < 1:
        raise ValueError(f"num_processes={of}: expected at least 1")
    return DataRank(index, of)


def _only_one_may_read(loader: DataLoader[Any], transport: Transport | None) -> bool:
    """Whether it is a stream of which nothing says that it comes in one order on all ranks."""
    if not isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    owner = generator_owner(loader.dataset)
    followed = owner is not None and owner.generator is not None
    return transport is not None and transport.size > 1 and not followed


def _batching_of(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return {"sampler": loader.sampler, "batch_size": None}
    return {"batch_sampler": loader.batch_sampler}


def _stream(
    loader: DataLoader[Any],
    where: DataRank,
    split_batches: bool,
    even_batches: bool,
    rng_types: list[RNGType],
    transport: Transport | None,
    hardware: Device | None,
    settings: dict[str, Any],
    shared: dict[str, Any],
) -> DataLoader[Any]:
    dataset: Any = loader.dataset
    size = loader.batch_size
    if where.of > 1:
        dataset = IterableDatasetShard(
            dataset,
            size,
            loader.drop_last,
            where.of,
            where.index,
            split_batches,
            even_batches=even_batches,
            mark_tail=True,
        )
        size = dataset.rows
        settings["collate_fn"] = TailedCollate(settings["collate_fn"])
    ready: DataLoaderShard[Any] = DataLoaderShard(
        dataset,
        rng_types=rng_types,
        transport=transport,
        hardware=hardware,
        batch_size=size,
        drop_last=loader.drop_last,
        **shared,
        **settings,
    )
    if where.of > 1 and transport is not None:
        owner = generator_owner(loader.dataset)
        # a dataset whose generator is None may mean by it that it does not shuffle
        if owner is not None and owner.generator is not None:
            ready.follows.append(FollowRankZero(owner, transport))
        # Every rank reads the whole stream, so its workers have to draw the same numbers everywhere: torch seeds them
        # from the loader's generator.
        if ready.num_workers > 0:
            ready.follows.append(FollowRankZero(ready, transport))
    return ready


def _seedable(sampler: Any, data_seed: int | None, transport: Transport | None) -> Any:
    inner = innermost_sampler(sampler)
    if type(inner) is not RandomSampler:
        return sampler
    seed = torch.initial_seed() if data_seed is None else data_seed
    if transport is not None:
        seed = transport.broadcast_object(seed, 0)
    seedable = SeedableRandomSampler(
        inner.data_source, replacement=inner.replacement, num_samples=inner._num_samples, data_seed=seed
    )
    if sampler is inner:
        return seedable
    if type(sampler) is not BatchSampler or sampler.sampler is not inner:
        raise ValueError(
            f"use_seedable_sampler cannot reach the RandomSampler inside {type(sampler).__name__}; give it a"
            " SeedableRandomSampler yourself"
        )
    return BatchSampler(seedable, sampler.batch_size, sampler.drop_last)


def _follow(
    sampler: Any, where: DataRank, transport: Transport | None, rng_types: list[RNGType]
) -> FollowRankZero | None:
    if where.of == 1 or isinstance(innermost_sampler(sampler), SeedableRandomSampler):
        return None
    owner = generator_owner(sampler)
    if owner is None:
        return None
    if transport is not None:
        # rng_types has made the default generators equal: only when all ranks draw from them do they stay equal
        alike = owner.generator is None and RNGType.TORCH in rng_types
        return None if alike else FollowRankZero(owner, transport)
    if owner.generator is None:
        warnings.warn(
            f"{type(owner).__name__} has no generator, so each of the {where.of} ranks draws an order of its own unless"
            " all are seeded alike; pass generator=torch.Generator().manual_seed(seed) to the DataLoader, or"
            " use_seedable_sampler=True with a data_seed",
            stacklevel=3,
        )
    return None


def _refuse_sharded_already(loader: DataLoader[Any], where: DataRank) -> None:
    if where.of == 1:
        return
    inner = innermost_sampler(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
    if isinstance(inner, DistributedSampler):
        raise ValueError(
            "the DataLoader has a DistributedSampler, which gives each process its share already; sharding it again"
            " would lose samples. Remove the DistributedSampler (shuffle=True is enough)"
        )
    if isinstance(loader, DataLoaderShard | DataLoaderDispatcher):
        raise ValueError("this DataLoader is prepared already; prepare it once")
