"""Choose how ranks share the data of a loader, from facts alone and before anything is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import lcm

from accel_ops.fingerprint import Check

from accel_data.sharding.rank_slices import DataRank, Ending
from accel_data.traits import LoaderTraits

#: logical shards of a stream: numbers of readers that divide this one see the same order
SHARDS = 8
#: processes beyond which rank 0 is warned of that reads for all
MANY = 64


class ReadMode(Enum):
    """The ways to read a dataset, with their words for a log."""

    BY_INDEX = "by index"
    IN_SHARDS = "at the source"
    BY_EVERY_RANK = "by every rank"
    BY_RANK_ZERO = "by rank 0 for all"
    OWN_PART = "by every rank, its own part"


class Exchange(Enum):
    """The exchanges between ranks."""

    FINGERPRINTS = "fingerprints of the dataset (once)"
    FIRST_SAMPLE = "digests of the first sample (once)"
    GENERATORS = "random states (each epoch)"
    VOTES = "votes (each batch)"
    BATCHES = "parts of what rank 0 reads (each batch)"


#: the words of a plan for each ending, and for the mode of map-style datasets
ENDINGS = {
    Ending.REPEAT: "samples from the start fill the last round",
    Ending.DROP: "a last round that is not full is left out",
    Ending.EXACT: "the last round is divided evenly",
    Ending.UNEVEN: "the last round may be short",
}
BY_INDEX = "each rank reads its own samples of a map-style dataset"


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """The decision how ranks share the data of a loader, which a `DataLoaderShard` executes.

    Args:
        rank: The rank of this process among those that share the data.
        mode: Who reads the dataset.
        why: The reason for the mode, in words.
        rows: Samples of a full batch of a rank, or None if batches vary.
        unit: What positions count: "samples" or "batches" of one order, or samples of "shards" or of "readers".
        split_batches: Whether each batch of the script is divided among the ranks.
        ending: What happens to samples that do not fill a round of all ranks.
        shards: Number of shards that readers take samples of in turn, or None if there is one order.
        readers: Processes that read for each rank.
        copies: Processes that are served the same samples.
        check: How ranks compare their datasets.
        exchanges: What the ranks exchange.
        notes: Lines for the logger "accel_data", each with its level.
        warnings: Warnings about orders that differ.
    """

    rank: DataRank
    mode: ReadMode = ReadMode.BY_INDEX
    why: str = BY_INDEX
    rows: int | None = 1
    unit: str = "samples"
    split_batches: bool = False
    ending: Ending = Ending.REPEAT
    shards: int | None = None
    readers: int = 1
    copies: int = 1
    check: Check = True
    exchanges: frozenset[Exchange] = frozenset()
    notes: tuple[tuple[int, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """True if no other process is served samples of the dataset."""
        return self.rank.of == self.copies == 1

    @property
    def dispatches(self) -> bool:
        """True if this process is sent batches by rank 0, or is rank 0."""
        return Exchange.BATCHES in self.exchanges

    @property
    def reads(self) -> DataRank:
        """The rank whose share of the order is read: the own one, or all of it if rank 0 reads for all."""
        return DataRank(0, 1) if self.dispatches else self.rank

    @property
    def batches_per_round(self) -> int:
        """The number of batches that a process reads for one batch of each rank."""
        return self.rank.of if self.dispatches and not self.split_batches else 1

    @property
    def round(self) -> int:
        """The number of samples, or of batches that stay whole, that all ranks take together."""
        if self.unit != "batches":
            return (self.rows or 1) * self.rank.of
        return self.batches_per_round if self.dispatches else self.rank.of

    def __str__(self) -> str:
        what = "batches" if self.unit == "batches" else "samples"
        order = "the order" if self.shards is None else f"each of {self.shards} {self.unit}"
        lines = {
            "rank": f"{self.rank.index} of {self.rank.of}",
            "read": f"{self.mode.value}: {self.why}",
            "round": f"{self.round} {what}, {1 if what == 'batches' else self.rows or 1} for each rank",
            "ending": f"{self.ending.value}: {ENDINGS[self.ending]}",
            "exchanged": ", ".join(kind.value for kind in Exchange if kind in self.exchanges) or "nothing",
            "noted": f"how many {what} of {order} were served",
        }
        return "\n".join(f"{name:11}{text}" for name, text in lines.items())


def plan_loader(
    traits: LoaderTraits,
    rank: DataRank,
    *,
    size: int | None = None,
    copies: int = 1,
    split_batches: bool = False,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    ending: Ending | str | None = None,
    check_datasets: Check = True,
    already_sharded: bool = False,
) -> LoaderPlan:
    """Choose how ranks share the data of a loader.

    Args:
        traits: The facts about the loader.
        rank: The rank of this process among those that share the data.
        size: Number of ranks of the transport, or None without one.
        copies: Processes that are served the same samples.
        split_batches: Divide each batch of the script among the ranks.
        dispatch_batches: True lets rank 0 read for all, and False promises one order of a stream on all ranks.
        even_batches: Give all ranks equally many batches.
        ending: What happens to samples that do not fill a round of all ranks.
        check_datasets: How ranks compare their datasets.
        already_sharded: The stream gives each rank its part by itself.

    Raises:
        ValueError: Settings conflict, or the data is sharded already.
    """
    end = _ending(ending, drop_last=traits.drop_last, even_batches=even_batches)
    equal, alone = even_batches and end is not Ending.UNEVEN, rank.of == copies == 1
    connected = size == rank.of and not alone
    if traits.distributed and not alone:
        raise ValueError(
            "the DataLoader has a DistributedSampler, which gives each process its share already; sharding it again"
            " would lose samples. Remove the DistributedSampler (shuffle=True is enough)"
        )
    if dispatch_batches:
        _refuse_dispatching(size == rank.of, equal=equal, sharded=traits.stream and already_sharded)
    mode, why, shards = _mode(
        traits, rank, dispatch_batches, own=already_sharded, equal=equal, connected=connected, alone=alone
    )
    uses = {
        Exchange.FINGERPRINTS: check_datasets and mode is not ReadMode.OWN_PART,
        Exchange.FIRST_SAMPLE: check_datasets in (True, "error") and mode is ReadMode.BY_EVERY_RANK,
        Exchange.GENERATORS: True,
        # ranks run out of their shards apart, and are to get equally many batches
        Exchange.VOTES: mode in (ReadMode.IN_SHARDS, ReadMode.OWN_PART) and rank.of > 1 and end is not Ending.UNEVEN,
        Exchange.BATCHES: mode is ReadMode.BY_RANK_ZERO,
    }
    exchanges = frozenset(exchange for exchange, used in uses.items() if used and connected)
    divided = split_batches and Exchange.BATCHES not in exchanges
    unit = "samples" if traits.batch_size is not None and (traits.by_sample or divided) else "batches"
    if shards is not None:
        unit = "shards" if traits.shardable and mode is not ReadMode.OWN_PART else "readers"
    rows = traits.batch_size
    return LoaderPlan(
        rank,
        mode,
        why,
        rows=rows // rank.of if rows is not None and split_batches else rows,
        unit=unit,
        split_batches=split_batches,
        ending=end if rank.of > 1 or end is Ending.DROP else Ending.UNEVEN,
        shards=shards,
        readers=max(traits.workers, 1),
        copies=copies,
        # processes that divide layers compute one model's output from their batches: unlike ones make it wrong
        check="error" if check_datasets is True and copies > 1 else check_datasets,
        exchanges=exchanges,
        notes=() if alone else tuple(_notes(traits, mode, why, rank.of * copies, asked=bool(dispatch_batches))),
        warnings=tuple(_warnings(traits, rank, size)),
    )


def _ending(asked: Ending | str | None, *, drop_last: bool, even_batches: bool) -> Ending:
    if asked is None:
        return Ending.of(drop_last=drop_last, even_batches=even_batches)
    known = [ending.value for ending in Ending]
    if not isinstance(asked, Ending) and asked not in known:
        raise ValueError(f"ending={asked!r}: expected one of {', '.join(map(repr, known))}")
    return Ending(asked)


def _refuse_dispatching(possible: bool, *, equal: bool, sharded: bool) -> None:
    if not possible:
        raise ValueError("dispatch_batches=True sends batches between processes: it needs their transport")
    if not equal:
        raise ValueError(
            "dispatch_batches=True gives all processes equal parts of each batch, and even_batches=False, or"
            ' ending="join", asks for unequal ones; give one of them up'
        )
    if sharded:
        raise ValueError(
            "already_sharded=True says that each rank reads its own part of the stream, and dispatch_batches=True that"
            " rank 0 reads for all; give one of them up"
        )


def _mode(
    traits: LoaderTraits,
    rank: DataRank,
    dispatch_batches: bool | None,
    *,
    own: bool,
    equal: bool,
    connected: bool,
    alone: bool,
) -> tuple[ReadMode, str, int | None]:
    """Return who reads, why, and in how many shards."""
    workers = max(traits.workers, 1)
    readers = rank.of * workers
    if traits.stream and own and rank.of > 1:
        return ReadMode.OWN_PART, "already_sharded=True says that it gives each rank its part", readers
    if dispatch_batches and (traits.stream or connected):
        return ReadMode.BY_RANK_ZERO, "dispatch_batches=True asks for it", None
    if not traits.stream:
        return ReadMode.BY_INDEX, BY_INDEX, None
    if traits.shardable:
        shards = logical_shards(traits.shards, readers, alone=rank.of == 1, even=connected)
        if shards is not None:
            of = "" if traits.shards is None else f" of its {traits.shards}"
            return ReadMode.IN_SHARDS, f"in {shards} logical shards{of}, for {readers} readers", shards
    reasons = {
        "there is one process": alone,
        "dispatch_batches=False promises that it comes in one order on all ranks": dispatch_batches is False,
        "its generator, from which its order follows, is made equal on all ranks": traits.seeded,
        "its elements are batches, of which ranks take turns": traits.batch_size is None,
        'ending="join" lets ranks end apart': not equal,
        "ranks exchange nothing": not connected,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    mode = ReadMode.BY_RANK_ZERO if why is None else ReadMode.BY_EVERY_RANK
    why = why or "nothing says that it comes in one order on all ranks"
    if not traits.shardable:
        return mode, why, None
    why = f"its {traits.shards} shards cannot be divided equally among {readers} readers, and {why}"
    return mode, why, logical_shards(traits.shards, workers, alone=True) if mode is ReadMode.BY_RANK_ZERO else None


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


def _notes(traits: LoaderTraits, mode: ReadMode, why: str, processes: int, *, asked: bool) -> Iterator[tuple[int, str]]:
    if mode is ReadMode.BY_RANK_ZERO and processes > MANY:
        yield (
            logging.WARNING,
            f"{traits.dataset}: rank 0 reads for {processes} processes, and sends each of the {processes - 1} others"
            " its part of every batch: it may read and send for longer than a step takes. Let each rank read its own:"
            " dispatch_batches=False if all ranks see one order, or a stream of shards, or already_sharded=True",
        )
    if not traits.stream:
        return
    unused = traits.shardable and mode is not ReadMode.IN_SHARDS and not asked
    own = mode is ReadMode.OWN_PART
    yield logging.WARNING if unused and not own else logging.INFO, f"{traits.dataset} is read {mode.value}: {why}"
    if traits.rank_names and not own:
        yield (
            logging.WARNING,
            f"{traits.dataset}.__iter__ reads the rank ({', '.join(traits.rank_names)}): if it gives each rank a part,"
            " it is sharded a second time now, and samples are lost. Then pass"
            " DataLoaderConfiguration(already_sharded=True), or let it give all",
        )


def _warnings(traits: LoaderTraits, rank: DataRank, size: int | None) -> Iterator[str]:
    if traits.unseeded_shuffle and rank.index == 0:
        yield (
            "this webdataset pipeline shuffles without a seed, so a job that is resumed would lose samples and repeat"
            " others: write shuffle(n, seed=0)"
        )
    if not traits.stream and size is None and rank.of > 1 and traits.drawn_by is not None and not traits.seeded:
        yield (
            f"{traits.drawn_by} has no generator, so each of the {rank.of} ranks draws an order of its own unless all"
            " are seeded alike; pass generator=torch.Generator().manual_seed(seed) to the DataLoader, or"
            " use_seedable_sampler=True with a data_seed"
        )
