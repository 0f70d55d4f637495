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
from accel_data.draws import generator_owner
from accel_data.fingerprint import check_same_dataset, fingerprint
from accel_data.iterable import IterableDatasetShard
from accel_data.ledger import Ledger
from accel_data.loader import DataLoaderShard
from accel_data.marks import MarkedCollate
from accel_data.plan import DataRank, Ending
from accel_data.rebuild import settings_of
from accel_data.rng import RNGType, WorkerSeed, rng_types_of
from accel_data.samplers import BatchSamplerShard, innermost_sampler
from accel_data.seedable import SeedableRandomSampler
from accel_data.shards import ShardedStream, can_be_sharded, shards_for
from accel_data.shield import shielded

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
    ending: Ending | str | None = None,
    check_datasets: bool = True,
    ledger: Ledger | None = None,
    transport: Transport | None = None,
    hardware: Device | None = None,
    clock: StepClock | None = None,
) -> DataLoader[Batch]:
    """A loader that serves rank `process_index` of `num_processes` its share of what `dataloader` would serve alone.

    Nothing is drawn from any random generator. Ranks that shuffle need one order: the transport makes them follow rank
    0; without one give every rank a generator with the same seed, or `use_seedable_sampler` with a `data_seed`.

    A stream with `shard(num_shards, index)` is read by all ranks and workers, each its own shards. Another one is read
    by rank 0 alone and dispatched, unless it has a `generator` that can be synchronised or `dispatch_batches=False`
    promises that it comes in one order everywhere; then each rank reads it and keeps its part.

    `ending` says what happens to samples that do not fill a round: "pad", "drop", "exact" or "join"; left out, it
    follows from `drop_last` and `even_batches`.

    Raises: TypeError for what is no DataLoader or cannot be re-created; ValueError for settings that contradict, and
    for ranks that hold different datasets.
    Collective: with a transport, every rank must prepare and iterate alike.
    """
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"only a torch.utils.data.DataLoader can be prepared, found a {type(dataloader).__name__}")
    where = _where(num_processes, process_index, transport)
    rng_types = rng_types_of(rng_types or ())
    settings = settings_of(dataloader)
    if settings["num_workers"] > 0:
        settings["worker_init_fn"] = shielded(settings["worker_init_fn"])
    end = _ending(ending, dataloader, even_batches)
    _refuse_sharded_already(dataloader, where)
    together = transport is not None and transport.size > 1 and where.of == transport.size
    if check_datasets and together and transport is not None:
        known = check_same_dataset(dataloader.dataset, transport)
    else:
        known = fingerprint(dataloader.dataset)
    shards = _shards(dataloader, where, dispatch_batches)
    if dispatch_batches is None:
        equal = even_batches and end is not Ending.UNEVEN
        dispatch_batches = shards is None and equal and _only_one_may_read(dataloader, transport)
    common: dict[str, Any] = {"device": device if put_on_device else None, "non_blocking": non_blocking, "clock": clock}
    common |= {"ending": end, "rng_types": rng_types, "hardware": hardware, "transport": transport, "ledger": ledger}
    if dispatch_batches:
        if transport is None or where.of != transport.size:
            raise ValueError("dispatch_batches=True sends batches between processes: it needs their transport")
        if not even_batches or end is Ending.UNEVEN:
            raise ValueError(
                "dispatch_batches=True gives all processes equal parts of each batch, and even_batches=False, or"
                ' ending="join", asks for unequal ones; give one of them up'
            )
        if transport.size > 1:
            alone, kept = DataRank(0, 1), {"fingerprint": known, "ending": end}
            if isinstance(dataloader.dataset, IterableDataset):
                reader = _stream(dataloader, alone, False, settings, None, kept)
            else:
                reader = _map_style(dataloader, _sampler(dataloader), alone, False, settings, kept)
            return DataLoaderDispatcher(reader, split_batches, **common, **_batching_of(dataloader))
    common |= {"fingerprint": known, "where": where}
    if isinstance(dataloader.dataset, IterableDataset):
        if shards is not None and where.index > 0:
            settings["worker_init_fn"] = WorkerSeed(where.index, settings["worker_init_fn"])
        return _stream(dataloader, where, split_batches, settings, shards, common)
    if where.index > 0 and settings["num_workers"] > 0 and RNGType.TORCH not in rng_types:
        settings["worker_init_fn"] = WorkerSeed(where.index, settings["worker_init_fn"])
    sampler = _sampler(dataloader)
    if use_seedable_sampler:
        sampler = _seedable(sampler, data_seed, transport)
    if transport is None and where.of > 1:
        _warn_of_own_orders(sampler, where)
    return _map_style(dataloader, sampler, where, split_batches, settings, common, even_batches=even_batches)


def _sampler(loader: DataLoader[Any]) -> Any:
    return loader.batch_sampler if loader.batch_sampler is not None else loader.sampler


def _ending(asked: Ending | str | None, loader: DataLoader[Any], even_batches: bool) -> Ending:
    if asked is None:
        drop = bool(getattr(_sampler(loader), "drop_last", loader.drop_last))
        return Ending.of(drop_last=drop, even_batches=even_batches)
    known = [one.value for one in Ending]
    if not isinstance(asked, Ending) and asked not in known:
        raise ValueError(f"ending={asked!r}: expected one of {', '.join(map(repr, known))}")
    return Ending(asked)


def _shards(loader: DataLoader[Any], where: DataRank, dispatch_batches: bool | None) -> int | None:
    if dispatch_batches or not isinstance(loader.dataset, IterableDataset) or not can_be_sharded(loader.dataset):
        return None
    return shards_for(loader.dataset, where.of * max(loader.num_workers, 1))


def _map_style(
    loader: DataLoader[Any],
    sampler: Any,
    where: DataRank,
    split_batches: bool,
    settings: dict[str, Any],
    common: dict[str, Any],
    *,
    even_batches: bool = True,
) -> DataLoaderShard[Any]:
    ending = common.get("ending", Ending.REPEAT)
    share = BatchSamplerShard(sampler, where.of, where.index, split_batches, even_batches, ending=ending)
    shown = share if where.of > 1 else sampler
    kind: dict[str, Any] = {"batch_sampler": shown}
    if loader.batch_sampler is None:
        kind = {"sampler": shown, "batch_size": None}
    return DataLoaderShard(loader.dataset, share=share, **common, **settings, **kind)


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
    settings: dict[str, Any],
    shards: int | None,
    common: dict[str, Any],
) -> DataLoaderShard[Any]:
    ending, size, drop = common.get("ending", Ending.REPEAT), loader.batch_size, loader.drop_last
    whole = IterableDatasetShard(
        loader.dataset, size, drop, where.of, where.index, split_batches, ending=ending, mark=True
    )
    rows = whole.rows
    dataset: IterableDatasetShard | ShardedStream = whole
    if shards is not None:
        dataset = ShardedStream(loader.dataset, shards, where, rows, ending=ending, workers=loader.num_workers)
    if shards is not None or whole.marks or loader.num_workers > 1:
        settings = settings | {"collate_fn": MarkedCollate(settings["collate_fn"])}
    drop = rows is not None and ending is Ending.DROP
    return DataLoaderShard(dataset, **common, **settings, batch_size=rows, drop_last=drop)


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


def _warn_of_own_orders(sampler: Any, where: DataRank) -> None:
    if isinstance(innermost_sampler(sampler), SeedableRandomSampler):
        return
    owner = generator_owner(sampler)
    if owner is not None and owner.generator is None:
        warnings.warn(
            f"{type(owner).__name__} has no generator, so each of the {where.of} ranks draws an order of its own unless"
            " all are seeded alike; pass generator=torch.Generator().manual_seed(seed) to the DataLoader, or"
            " use_seedable_sampler=True with a data_seed",
            stacklevel=3,
        )


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
