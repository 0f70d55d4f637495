"""Choose the samples of a rank by index arithmetic over any order, without a process group.

A *round* is what all ranks take together. A *slice* is the piece of one rank. `rows` counts the samples of a slice.
Full rounds are cut as they come. What is left at the end makes one short round, and the ending says what happens to it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, cycle, islice, pairwise, repeat
from operator import length_hint
from typing import Any, Generic, NamedTuple, TypeVar

from accel_state import BatchPadding

T = TypeVar("T")
#: counts the samples of a batch
Length = Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class DataRank:
    """The rank of one process among those that share the data.

    Args:
        index: The rank.
        of: Number of ranks.
    """

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"process_index={self.index} of num_processes={self.of}: expected 0 to {self.of - 1}")


class Ending(Enum):
    """The ways to treat samples that do not fill a round of all ranks.

    `REPEAT` repeats samples from the start, so that every rank gets equally many. `DROP` leaves them out. `EXACT`
    divides them evenly, and a rank that gets none is served one that does not count. `UNEVEN` lets ranks differ by one
    slice.
    """

    REPEAT = "pad"  # every rank gets equally many; samples from the start are seen again
    DROP = "drop"
    EXACT = "exact"  # they are divided evenly; a rank that gets none is served one that does not count
    UNEVEN = "join"  # ranks may differ by one part

    @classmethod
    def of(cls, *, drop_last: bool, even_batches: bool) -> "Ending":
        """Return the ending that two flags of a loader ask for.

        Args:
            drop_last: Drop samples that do not fill a round.
            even_batches: Give all ranks equally many, some of them again.
        """
        if drop_last:
            return cls.DROP
        return cls.REPEAT if even_batches else cls.UNEVEN


def samples_of(batch: Any) -> int:
    """Return the length of a batch, or 1 if the batch has none."""
    return length_hint(batch, 1)


class RankSlice(NamedTuple, Generic[T]):
    """The piece of one rank of a round.

    Args:
        items: The samples.
        tail: The real samples of each rank, or None if all are real.
    """

    items: T
    tail: BatchPadding | None = None


def slices_of_samples(
    stream: Iterable[T],
    where: DataRank,
    *,
    rows: int,
    ending: Ending,
    start: Sequence[T] = (),
    at_end: Iterable[T] = (),
) -> Iterator[RankSlice[list[T]]]:
    """Yield the slices of one rank of a stream of samples.

    Samples of other ranks are dropped at once, unless the ending needs them.

    Args:
        stream: The samples; each round is a slice of `rows` consecutive samples for each rank.
        where: The rank.
        rows: Samples of a slice.
        ending: What happens to samples that do not fill a round.
        start: The first round of the epoch, if the stream begins later.
        at_end: An iterable without items, read when the stream has no more.
    """
    size, first = rows * where.of, where.index * rows
    # blanks fill up the last round: how many are left says how many samples it had, and counting them costs nothing
    blanks: Any = repeat(None, size)
    source = chain(stream, at_end, blanks)
    while True:
        whole = ending is Ending.EXACT or (ending is Ending.REPEAT and not start)
        low, high = (0, size) if whole else (first, first + rows)
        if low:
            deque(islice(source, low), maxlen=0)
        kept = list(islice(source, high - low))
        if high < size:
            deque(islice(source, size - high), maxlen=0)
        taken = length_hint(blanks)
        if taken < size:
            break
        if ending is Ending.REPEAT and whole:
            start = kept
        yield RankSlice(kept[first : first + rows] if whole else kept)
    kept = kept[: max(taken - low, 0)]
    yield from last_of_samples(kept, start or kept, where, rows=rows, ending=ending, taken=None if whole else taken)


def last_of_samples(
    kept: list[T], start: Sequence[T], where: DataRank, *, rows: int, ending: Ending, taken: int | None = None
) -> Iterator[RankSlice[list[T]]]:
    """Yield the slice of one rank of a round that is not full, if the rank gets one.

    Args:
        kept: All samples of the round, or those of the rank alone if `taken` is given.
        start: The first round of the epoch.
        where: The rank.
        rows: Samples of a slice.
        ending: What happens to samples that do not fill a round.
        taken: Number of samples of the round.
    """
    own = kept[where.index * rows : (where.index + 1) * rows] if taken is None else kept
    taken = len(kept) if taken is None else taken
    if not taken or ending is Ending.DROP or (ending is Ending.UNEVEN and not own):
        return
    if ending is Ending.UNEVEN:
        # with nobody else, what is short is known to be the end of the job's data
        yield RankSlice(own, BatchPadding((taken,), (taken,)) if where.of == 1 else None)
    elif ending is Ending.REPEAT:
        yield _filled(own, samples_in_slices(taken, rows, where.of), start, where, rows)
    else:
        slices, padding = divided_evenly(taken, where.of)
        yield RankSlice(kept[slices[where.index]], padding)


def samples_in_slices(items: int, rows: int, of: int) -> list[int]:
    """Return how many of the samples of a round the slice of each rank has.

    Args:
        items: Number of samples of the round.
        rows: Samples of a full slice.
        of: Number of ranks.
    """
    return [min(max(items - rank * rows, 0), rows) for rank in range(of)]


def divided_evenly(items: int, of: int) -> tuple[list[slice], BatchPadding]:
    """Return the slices that divide a round evenly.

    A rank that gets none is served the first sample, which does not count.

    Args:
        items: Number of samples of the round.
        of: Number of ranks.
    """
    bounds = [rank * items // of for rank in range(of + 1)]
    slices = [slice(begin, end) if begin < end else slice(0, 1) for begin, end in pairwise(bounds)]
    real = tuple(end - begin for begin, end in pairwise(bounds))
    return slices, BatchPadding(real, tuple(max(count, 1) for count in real))


def slices_of_batches(
    stream: Iterable[T],
    where: DataRank,
    *,
    ending: Ending,
    start: Sequence[T] = (),
    at_end: Iterable[T] = (),
    length: Length = samples_of,
) -> Iterator[RankSlice[Any]]:
    """Yield the slices of one rank of a stream of batches, which stay whole.

    Args:
        stream: The batches; each round is one for each rank.
        where: The rank.
        ending: What happens to batches that do not fill a round.
        start: The first round of the epoch, if the stream begins later.
        at_end: An iterable without items, read when the stream has no more.
        length: Function that counts the samples of a batch.
    """
    source = chain(stream, at_end)
    taken = list(islice(source, where.of))
    start = start or taken
    while len(taken) == where.of:
        yield RankSlice(taken[where.index])
        taken = list(islice(source, where.of))
    yield from last_of_batches(taken, start, where, rows=None, ending=ending, length=length)


def last_of_batches(
    taken: list[Any],
    start: Sequence[Any],
    where: DataRank,
    *,
    rows: int | None,
    ending: Ending,
    length: Length = samples_of,
) -> Iterator[RankSlice[Any]]:
    """Yield the batch of one rank of the last round, if the rank gets one.

    The round has fewer batches than ranks, or its last batch is short.

    Args:
        taken: The batches of the round.
        start: The first round of the epoch.
        where: The rank.
        rows: Samples to which batches are filled up, or None to repeat whole batches.
        ending: What happens to batches that do not fill a round.
        length: Function that counts the samples of a batch.
    """
    mine, missing = taken[where.index : where.index + 1], where.of - len(taken)
    if not taken or ending is Ending.DROP or (ending is Ending.UNEVEN and not mine):
        return
    real = [*map(length, taken), *[0] * missing]
    if ending is Ending.UNEVEN:
        yield RankSlice(mine[0], BatchPadding(tuple(real), tuple(real)) if where.of == 1 else None)
    elif ending is Ending.REPEAT and rows is not None:
        yield _filled(list(chain(*mine)), real, list(chain(*start)), where, rows)
    else:
        first = taken[0][:1] if isinstance(taken[0], Sequence) else taken[0]
        filled = [*taken, *islice(cycle(start if ending is Ending.REPEAT else [first]), missing)]
        yield RankSlice(filled[where.index], BatchPadding(tuple(real), tuple(map(length, filled))))


def _filled(own: list[T], real: list[int], start: Sequence[T], where: DataRank, rows: int) -> RankSlice[list[T]]:
    """Return a slice of the last round, filled up with samples from the start of the epoch, again and again."""
    again = sum(max(rows - count, 0) for count in real[: where.index]) % max(len(start), 1)
    own = [*own, *islice(cycle(start), again, again + max(rows - len(own), 0))]
    return RankSlice(own, BatchPadding(tuple(real), tuple(max(rows, count) for count in real)))


def slices_in(items: int, where: DataRank, *, ending: Ending, rows: int = 1) -> int:
    """Return the number of slices that a rank gets.

    Args:
        items: Number of samples, or of batches if each slice is one batch.
        where: The rank.
        ending: What happens to samples that do not fill a round.
        rows: Samples of a slice.
    """
    rounds, left = divmod(items, rows * where.of)
    if ending is Ending.DROP:
        return rounds
    if ending is Ending.UNEVEN:
        return rounds + (left > where.index * rows)
    return rounds + (left > 0)


def refuse_split(owner: object, batch_size: int | None, world: int) -> None:
    """Raise if batches cannot be divided among the processes.

    Args:
        owner: The sampler or dataset whose batches are divided, for the message.
        batch_size: Samples of a batch, or None if batches vary.
        world: Number of processes.

    Raises:
        ValueError: Batches have no size, or one that `world` does not divide.
    """
    if batch_size is None:
        raise ValueError(
            f"split_batches=True divides each batch among {world} processes and needs a batch_size; found a"
            f" {type(owner).__name__} without one. Give it a batch_size, or use split_batches=False"
        )
    if batch_size % world:
        raise ValueError(
            f"split_batches=True divides each batch among {world} processes: batch_size={batch_size} is not a"
            f" round multiple of {world}. Use {-(-batch_size // world) * world}, or split_batches=False"
        )


def with_last(stream: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each item with a flag that is true for the last one.

    One item is read ahead.
    """
    source = iter(stream)
    for held in source:
        for following in source:
            yield held, False
            held = following
        yield held, True
