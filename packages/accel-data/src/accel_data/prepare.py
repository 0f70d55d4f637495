"""Turn any DataLoader into that of one rank."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable
from inspect import signature
from typing import Any, TypeVar, cast

import torch
from accel_comm import Transport
from accel_ops.fingerprint import Check, Fingerprint, check_same_dataset, fingerprint
from accel_ops.rng import RNGType, rng_types_of
from accel_state import AccumulationState, Device
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from accel_data.iterable.read_batch import ReadCollate
from accel_data.iterable.stream_reader import StreamReader
from accel_data.loaders.dispatcher import DataLoaderDispatcher
from accel_data.loaders.loader import DataLoaderShard
from accel_data.plan import Exchange, ReadMode, plan_loader
from accel_data.resume.consumption_log import ConsumptionLog
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split
from accel_data.sharding.samplers import innermost_sampler
from accel_data.sharding.seedable_sampler import SeedableRandomSampler
from accel_data.traits import sampler_of, shards_of, traits_of
from accel_data.workers import worker_start

logger = logging.getLogger("accel_data")
Batch = TypeVar("Batch")
#: settings of a DataLoader that another one like it is given
KEPT = set(signature(DataLoader).parameters) - {"dataset", "batch_size", "shuffle", "drop_last", "pin_memory_device"}
KEPT -= {"sampler", "batch_sampler"}


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
    use_stateful_dataloader: bool = False,
    ending: Ending | str | None = None,
    check_datasets: Check = True,
    already_sharded: bool = False,
    consumption_log: ConsumptionLog | None = None,
    transport: Transport | None = None,
    hardware: Device | None = None,
    accumulation: AccumulationState | None = None,
) -> DataLoader[Batch]:
    """Return a loader that serves one rank its share of what a DataLoader would serve alone.

    Nothing is drawn from any random generator. Ranks that shuffle need one order. With a transport they follow rank 0.
    Without one, give every rank a generator with the same seed, or use `use_seedable_sampler` with a `data_seed`.

    A stream with a method `shard(num_shards, index)` is read by all ranks and workers, each its own shards. Another
    stream is read by rank 0 alone, which sends the other ranks their parts. If the stream has a `generator` that can be
    synchronized, or with `dispatch_batches=False`, each rank reads all of it and keeps its part. The logger
    "accel_data" says how a stream is read.

    Args:
        dataloader: The DataLoader of the script.
        device: Device that batches are moved to, with `put_on_device`.
        num_processes: Number of ranks that share the data; that of the transport if it is left out, and 1 without one.
        process_index: Rank of this process among them; that of the transport if it is left out, and 0 without one.
        split_batches: Divide each batch of the DataLoader among the ranks; otherwise each rank gets whole batches.
        put_on_device: Move batches to `device`.
        rng_types: Generators to make equal on all ranks at the start of each epoch.
        dispatch_batches: True lets rank 0 read for all. False promises that a stream comes in one order on all ranks.
            None chooses by the kind of stream, and lets ranks read a map-style dataset.
        even_batches: Give all ranks equally many batches.
        use_seedable_sampler: Replace a RandomSampler by a `SeedableRandomSampler`.
        data_seed: Seed of that sampler; the initial seed of torch if it is left out.
        non_blocking: Copy the next batch to the device while the script uses the current one.
        use_stateful_dataloader: Return an instance of torchdata's `StatefulDataLoader` too, if torchdata is installed.
        ending: What happens to samples that do not fill a round of all ranks. "pad" repeats samples from the start, so
            that all ranks get equally many. "drop" leaves them out. "exact" divides them without repeating any. "join"
            lets ranks end at different batches. If it is left out, it follows from `drop_last` of the DataLoader and
            `even_batches`.
        check_datasets: True raises if ranks hold different datasets, but only warns if nothing differs except the
            values of tensors, as scripts draw them at random, unless processes divide layers among them. "error" raises
            for those values too. "warn" only warns, unless the lengths differ. False compares nothing.
        already_sharded: The stream gives each rank its part by itself.
        consumption_log: File that gets a line at each start, resume and end of an epoch.
        transport: Transport of the ranks that share the data.
        hardware: Device of this process, for its generator.
        accumulation: The window of micro-batches of the script.

    Returns:
        A `DataLoaderShard`, or a `DataLoaderDispatcher` if rank 0 reads for all.

    Raises:
        TypeError: `dataloader` is no DataLoader, or iterates in a way of its own.
        ValueError: Settings conflict, or ranks hold different datasets.

    Collective:
        With a transport, every rank must prepare and iterate alike.
    """
    if check_datasets not in (True, False, "error", "warn"):
        raise ValueError(f'check_datasets={check_datasets!r}: expected True, False, "error" or "warn"')
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"only a torch.utils.data.DataLoader can be prepared, found a {type(dataloader).__name__}")
    settings, kinds = settings_of(dataloader), rng_types_of(rng_types or ())
    rank, sampler = _rank(num_processes, process_index, transport), sampler_of(dataloader)
    if use_seedable_sampler:
        sampler = _seedable(sampler, data_seed, transport)
    source, traits = dataloader.dataset, traits_of(dataloader, sampler)
    plan = plan_loader(
        traits,
        rank,
        size=None if transport is None else transport.size,
        copies=1 if transport is None else transport.replicas,
        split_batches=split_batches,
        dispatch_batches=dispatch_batches,
        even_batches=even_batches,
        ending=ending,
        check_datasets=check_datasets,
        already_sharded=already_sharded,
    )
    if isinstance(dataloader, DataLoaderShard) and not plan.alone:
        raise ValueError("this DataLoader is prepared already; prepare it once")
    if split_batches:
        refuse_split(source if traits.stream else sampler, traits.batch_size, rank.of)
    known: Fingerprint | None = None
    if Exchange.FINGERPRINTS in plan.exchanges and transport is not None:
        # rank 0 alone reads for all; it is reported if ranks leave a stream at different batches
        unequal = plan.mode is not ReadMode.BY_INDEX or (plan.ending is Ending.UNEVEN and rank.of > 1)
        known = check_same_dataset(source, transport.world, plan.check, unequal=unequal)
    elif plan.mode is not ReadMode.OWN_PART:  # there, ranks hold unlike streams
        known = fingerprint(source)
    for level, note in plan.notes if (rank.index if transport is None else transport.world.rank) == 0 else ():
        logger.log(level, note)
    for warning in plan.warnings:
        warnings.warn(warning, stacklevel=2)
    own_seeds = plan.shards is not None if traits.stream else RNGType.TORCH not in kinds
    settings["worker_init_fn"] = worker_start(settings["worker_init_fn"], plan.reads.index if own_seeds else 0)
    if traits.stream:
        shard = shards_of(source)[1] if plan.unit == "shards" else None
        source = StreamReader(
            source, plan, dataloader.batch_size, shard, dataloader.num_workers, dataloader.persistent_workers
        )
        settings |= {"collate_fn": ReadCollate(settings["collate_fn"]), "batch_size": None}
    else:
        split = split_batches and not plan.dispatches
        share = BatchSamplerShard(sampler, plan.reads.of, plan.reads.index, split, even_batches, ending=plan.ending)
        shown = share if plan.reads.of > 1 else sampler
        unbatched = dataloader.batch_sampler is None
        settings |= {"sampler": shown, "batch_size": None} if unbatched else {"batch_sampler": shown}
        settings["share"] = share
    if isinstance(dataloader, DataLoaderShard):  # of `skip_first_batches`
        settings["skip_batches"] = dataloader.skip_batches
    kind: Any = DataLoaderDispatcher if plan.dispatches or dispatch_batches else DataLoaderShard
    prepared: DataLoader[Batch] = kind(
        source,
        device=device if put_on_device else None,
        rng_types=kinds,
        use_stateful_dataloader=use_stateful_dataloader,
        plan=plan,
        transport=transport,
        hardware=hardware,
        accumulation=accumulation,
        non_blocking=non_blocking,
        fingerprint=known,
        consumption_log=consumption_log,
        **settings,
    )
    return prepared


def skip_first_batches(dataloader: DataLoader[Batch], num_batches: int = 0) -> DataLoader[Batch]:
    """Return a loader that skips the first batches of each epoch on this rank.

    Skipped samples of a map-style dataset are not read, and those of a stream are. Epochs of both loaders are counted
    together. After `load_state_dict` of a prepared loader there is nothing to skip.

    Args:
        dataloader: A DataLoader, prepared or not.
        num_batches: Batches of this rank to skip.

    Raises:
        ValueError: `num_batches` is no integer of at least 0.
        TypeError: `dataloader` is no DataLoader, or iterates in a way of its own.
    """
    if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 0:
        raise ValueError(f"num_batches={num_batches!r}: expected a whole number of at least 0")
    if isinstance(dataloader, DataLoaderShard):
        return dataloader.without_first(num_batches)
    ready = cast("DataLoaderShard[Batch]", prepare_data_loader(dataloader, num_processes=1, process_index=0))
    sampler = innermost_sampler(dataloader)
    if isinstance(sampler, SeedableRandomSampler):
        ready.set_epoch(sampler.next_epoch)
    return ready.without_first(num_batches)


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments that a loader was made with, except its dataset and samplers.

    Raises:
        TypeError: The class of the loader iterates in a way of its own, which another loader could not repeat.
        ValueError: The loader holds a loaded state of torchdata's form.
    """
    known = (DataLoader.__iter__, DataLoaderShard.__iter__)
    if type(loader).__iter__ not in known and not _has_a_state(loader):
        raise TypeError(
            f"{type(loader).__name__} iterates in a way of its own (it defines __iter__), which is lost when it is"
            " sharded; prepare a plain DataLoader, and put what it does into the dataset or the collate_fn"
        )
    return {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}


def _has_a_state(loader: Any) -> bool:
    """Return whether it is torchdata's loader, or raise if it is and holds a loaded state."""
    home = type(loader).__iter__.__module__
    if home != "torchdata.stateful_dataloader.stateful_dataloader":
        return False
    if loader.next_iter_state is not None:
        raise ValueError(
            "the StatefulDataLoader holds a loaded state, of torchdata's form: prepare it before it is used"
        )
    return True


def _rank(num_processes: int | None, process_index: int | None, transport: Transport | None) -> DataRank:
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
    if not isinstance(sampler, BatchSampler) or sampler.sampler is not inner:
        raise ValueError(
            f"use_seedable_sampler cannot reach the RandomSampler inside {type(sampler).__name__}; give it a"
            " SeedableRandomSampler yourself"
        )
    own = copy.copy(sampler)
    own.sampler = seedable
    return own
