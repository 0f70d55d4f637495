"""Choose who reads a stream: each rank its shards, each rank all of it, or rank 0 for all."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from enum import Enum
from math import lcm
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader

from accel_data.iterable.reader import Shard
from accel_data.iterable.webdataset import url_shards
from accel_data.resume.sampling_rng import generator_owner
from accel_data.sharding.rank_slices import DataRank

logger = logging.getLogger("accel_data")
#: names by which code asks for its rank
RANK_NAMES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "get_rank", "get_ordinal"}
RANK_NAMES |= {"process_index", "local_process_index", "split_by_node", "split_dataset_by_node"}

#: logical shards of a stream: numbers of readers that divide this one see the same order
SHARDS = 8


class Way(Enum):
    """The ways to read a stream, with their words for a log."""

    SOURCE = "at the source"
    EVERY = "by every rank"
    MAIN = "by rank 0 for all"
    OWN = "by every rank, its own part"


@dataclass(frozen=True, slots=True)
class Reading:
    """The decision how a stream is read.

    Args:
        way: Who reads the stream.
        why: The reason, in words.
        shards: Number of logical shards, or None if the stream is not read in shards.
        shard: Function that makes a shard, or None if the stream divides itself.
        fallback: Whether the stream has shards that could not be used.
    """

    way: Way
    why: str
    shards: int | None = None
    shard: Shard | None = None
    fallback: bool = False

    def log(self, dataset: object) -> None:
        """Log the decision in one line, and warn if the code of the stream asks for its rank."""
        level = logging.WARNING if self.fallback else logging.INFO
        logger.log(level, "%s is read %s: %s", type(dataset).__name__, self.way.value, self.why)
        if self.way is not Way.OWN:
            _warn_if_it_reads_its_rank(dataset)


def reading_of(
    loader: DataLoader[Any],
    where: DataRank,
    *,
    alone: bool,
    together: bool,
    dispatch_batches: bool | None,
    equal: bool,
    already_sharded: bool,
) -> Reading:
    """Choose how the stream of a loader is read.

    Args:
        loader: The loader of a stream.
        where: Rank of this process among those that share the data.
        alone: Whether no other process is served samples of the stream.
        together: Whether ranks exchange how far they are.
        dispatch_batches: True asks for rank 0 to read for all, False promises one order on all ranks.
        equal: Whether all ranks get equally many batches.
        already_sharded: Whether the stream gives each rank its part by itself.

    Raises:
        ValueError: `already_sharded` and `dispatch_batches` conflict.
    """
    workers = max(loader.num_workers, 1)
    readers = where.of * workers
    if already_sharded and dispatch_batches:
        raise ValueError(
            "already_sharded=True says that each rank reads its own part of the stream, and dispatch_batches=True that"
            " rank 0 reads for all; give one of them up"
        )
    if already_sharded and where.of > 1:
        return Reading(Way.OWN, "already_sharded=True says that it gives each rank its part", readers)
    if dispatch_batches:
        return Reading(Way.MAIN, "dispatch_batches=True asks for it")
    own, shard = shards_of(loader.dataset)
    if shard is not None:
        shards = logical_shards(own, readers, alone=where.of == 1, even=together)
        if shards is not None:
            of = "" if own is None else f" of its {own}"
            return Reading(Way.SOURCE, f"in {shards} logical shards{of}, for {readers} readers", shards, shard)
    way, why = _without_shards(loader, dispatch_batches, alone=alone, equal=equal, together=together)
    if shard is None:
        return Reading(way, why)
    why = f"its {own} shards cannot be divided equally among {readers} readers, and {why}"
    if way is Way.EVERY:
        return Reading(way, why, fallback=True)
    return Reading(way, why, logical_shards(own, workers, alone=True), shard, fallback=True)


def _without_shards(
    loader: DataLoader[Any], dispatch_batches: bool | None, *, alone: bool, equal: bool, together: bool
) -> tuple[Way, str]:
    owner = generator_owner(loader.dataset)
    reasons = {
        "there is one process": alone,
        "dispatch_batches=False promises that it comes in one order on all ranks": dispatch_batches is False,
        "its generator, from which its order follows, is made equal on all ranks": owner and owner.generator,
        "its elements are batches, of which ranks take turns": loader.batch_size is None,
        'ending="join" lets ranks end apart': not equal,
        "ranks exchange nothing": not together,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    return (Way.EVERY, why) if why else (Way.MAIN, "nothing says that it comes in one order on all ranks")


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


def logical_shards(own: int | None, readers: int, *, alone: bool = False, even: bool = False) -> int | None:
    """Return the number of logical shards for a stream, or None if it cannot be shared equally.

    There are at most eight for each reader, and equally many for each. So some readers may read one of the stream's own
    shards more than others.

    Args:
        own: Number of shards that the stream has, or None if the stream does not say it.
        readers: Number of processes that read it.
        alone: Whether all readers serve one rank, so that some of them may have no shard.
        even: Whether ranks are to read equally much: then the stream's own shards are divided unequally only if each
            reader has eight or more.
    """
    if own is None:
        return lcm(SHARDS, readers)
    if own < readers:
        return max(own, 1) if alone else None
    if even and own % readers and own < SHARDS * readers:
        return None
    if own <= SHARDS and own % readers == 0:
        return own
    wanted = lcm(SHARDS, readers)
    return wanted if wanted <= own else own // readers * readers


def _warn_if_it_reads_its_rank(dataset: object) -> None:
    """Warn if the code that iterates over a stream names a rank, as it may shard itself already."""
    method = getattr(type(dataset), "__iter__", None)
    names = sorted(_names(getattr(method, "__code__", None)) & RANK_NAMES)
    if names:
        logger.warning(
            "%s.__iter__ reads the rank (%s): if it gives each rank a part, it is sharded a second time now, and"
            " samples are lost. Then pass DataLoaderConfiguration(already_sharded=True), or let it give all",
            type(dataset).__name__,
            ", ".join(names),
        )


def _names(code: CodeType | None) -> set[str]:
    """Return the names and texts in a function, and in those inside of it."""
    if code is None:
        return set()
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return texts.union(code.co_names, *inner)
