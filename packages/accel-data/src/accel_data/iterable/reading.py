"""Who reads a stream: each rank its shards of the source, each rank all of it, or rank 0 for all."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader

from accel_data.iterable.source_shards import logical_shards
from accel_data.iterable.webdataset import by_urls
from accel_data.resume.sampling_rng import generator_owner
from accel_data.sharding.rank_slices import DataRank

logger = logging.getLogger("accel_data")
#: names by which code asks for its rank
RANK_NAMES = {
    "get_rank",
    "process_index",
    "local_process_index",
    "split_by_node",
    "split_dataset_by_node",
    "get_ordinal",
}
RANK_NAMES |= {"RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}


class Way(Enum):
    """How a stream is read; the values are the words for it."""

    SOURCE = "at the source"
    EVERY = "by every rank"
    MAIN = "by rank 0 for all"
    OWN = "by every rank, its own part"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stream is read, in how many logical shards, and why; `fallback` if its shards could not be used."""

    way: Way
    why: str
    shards: int | None = None
    fallback: bool = False

    def log(self, dataset: object) -> None:
        """Says it in one line."""
        level = logging.WARNING if self.fallback else logging.INFO
        logger.log(level, "%s is read %s: %s", type(dataset).__name__, self.way.value, self.why)


def reading_of(
    loader: DataLoader[Any],
    where: DataRank,
    *,
    together: bool,
    dispatch_batches: bool | None,
    equal: bool,
    already_sharded: bool,
) -> tuple[Reading, Any]:
    """How the stream of `loader` is read, which the log of rank 0 tells, and what of it is read.

    `equal` says whether all ranks get equally many batches, `together` whether they exchange what they know.

    Raises: ValueError for settings that contradict.
    """
    dataset: Any = loader.dataset
    source = by_urls(dataset)
    reading = _chosen(source, loader, where, together, dispatch_batches, equal, already_sharded)
    if where.of > 1 and where.index == 0:
        reading.log(dataset)
        if reading.way is not Way.OWN:
            _warn_if_it_reads_its_rank(dataset)
    return reading, dataset if reading.shards is None or reading.way is Way.OWN else source


def _chosen(
    dataset: Any,
    loader: DataLoader[Any],
    where: DataRank,
    together: bool,
    dispatch_batches: bool | None,
    equal: bool,
    already_sharded: bool,
) -> Reading:
    readers = where.of * max(loader.num_workers, 1)
    if already_sharded and dispatch_batches:
        raise ValueError(
            "already_sharded=True says that each rank reads its own part of the stream, and dispatch_batches=True that"
            " rank 0 reads for all; give one of them up"
        )
    if already_sharded and where.of > 1:
        return Reading(Way.OWN, "already_sharded=True says that it gives each rank its part", readers)
    if dispatch_batches:
        return Reading(Way.MAIN, "dispatch_batches=True asks for it")
    own = number_of_shards(dataset)
    fallback, shards = "", None
    if can_be_sharded(dataset):
        shards = logical_shards(own, readers, alone=where.of == 1, even=together)
        if shards is not None:
            of = "" if own is None else f" of its {own}"
            return Reading(Way.SOURCE, f"in {shards} logical shards{of}, for {readers} readers", shards)
        fallback = f"its {own} shards cannot be divided equally among {readers} readers, and "
        shards = logical_shards(own, max(loader.num_workers, 1), alone=True)
    owner = generator_owner(dataset)
    if where.of == 1:
        why, way = "there is one process", Way.EVERY
    elif dispatch_batches is False:
        why, way = "dispatch_batches=False promises that it comes in one order on all ranks", Way.EVERY
    elif owner is not None and owner.generator is not None:
        why, way = "its generator, from which its order follows, is made equal on all ranks", Way.EVERY
    elif loader.batch_size is None:
        why, way = "its elements are batches, of which ranks take turns", Way.EVERY
    elif not equal or not together:
        why, way = 'ending="join" lets ranks end apart' if not equal else "ranks exchange nothing", Way.EVERY
    else:
        why, way = "nothing says that it comes in one order on all ranks", Way.MAIN
    return Reading(way, fallback + why, shards if way is Way.MAIN else None, fallback=bool(fallback))


def can_be_sharded(dataset: object) -> bool:
    """Whether a stream has `shard(num_shards, index)`."""
    shard = getattr(dataset, "shard", None)
    if not callable(shard):
        return False
    return {"num_shards", "index"} <= set(inspect.signature(shard).parameters)


def number_of_shards(dataset: object) -> int | None:
    """How many shards a stream has of its own, if it says so."""
    own = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    return own if isinstance(own, int) and not isinstance(own, bool) else None


def _warn_if_it_reads_its_rank(dataset: object) -> None:
    """Warns if the code that iterates over a stream names a rank: what shards itself must not be sharded again."""
    method = getattr(type(dataset), "__iter__", None)
    found = sorted(_names(getattr(method, "__code__", None)) & RANK_NAMES)
    if found:
        logger.warning(
            "%s.__iter__ reads the rank (%s): if it gives each rank a part, it is sharded a second time now, and"
            " samples are lost. Then pass DataLoaderConfiguration(already_sharded=True), or let it give all",
            type(dataset).__name__,
            ", ".join(found),
        )


def _names(code: CodeType | None) -> set[str]:
    """The names and texts in a function, and in those inside of it."""
    if code is None:
        return set()
    texts = {one for one in code.co_consts if isinstance(one, str)}
    return texts.union(code.co_names, *[_names(one) for one in code.co_consts if isinstance(one, CodeType)])
