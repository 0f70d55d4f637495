"""Which samples a rank gets: index arithmetic over any order, without a process group.

A *round* is what all ranks take together; a *slice* is one rank's piece of it; `rows` counts the samples of a slice.
Full rounds are cut as they come. What is left at the end makes one short round, of which the ending says what happens.
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
    """The place of one process among those that share the data."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"process_index={self.index} of num_processes={self.of}: expected 0 to {self.of - 1}")


class Ending(Enum):
    """What happens to samples that do not fill a round."""

    REPEAT = "pad"  # every rank gets equally many; samples from the start are seen again
    DROP = "drop"
    EXACT = "exact"  # they are divided evenly; a rank that gets none is served one that does not count
    UNEVEN = "join"  # ranks may differ by one part

    @classmethod
    def of(cls, *, drop_last: bool, even_batches: bool) -> "Ending":
        """The ending that two flags of a loader ask for."""
        if drop_last:
            return cls.DROP
        return cls.REPEAT if even_batches else cls.UNEVEN


def samples_of(batch: Any) -> int:
    """The length of a batch; one for what has none."""
    return length_hint(batch, 1)


class RankSlice(NamedTuple, Generic[T]):
    """One rank's piece of a round; `tail` says what is real in it, None if everything is."""

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
    """The slices of one rank, when each round is `where.of` slices of `rows` consecutive samples of the stream.

    `start` is the first round of the epoch, if the stream begins later. `at_end` has no items: it is asked for them
    when the stream has no more. Samples of other ranks are let go at once, if the ending does not need them.
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
    """One rank's slice of a round that is not full, if it gets one.

    `kept` are all samples of the round, or those of the rank alone if `taken` says how many there were.
    """
    own = kept[where.index * rows : (where.index + 1) * rows] if taken is None else kept
    taken = len(kept) if taken is None else taken
    if not taken or ending is Ending.DROP or (ending is Ending.UNEVEN and not own):
        return
    if ending is Ending.UNEVEN:
        # with nobody else, what is short is known to be the end of the job's data
        yield RankSlice(own, BatchPadding((taken,), (taken,)) if where.of == 1 else None)
    elif ending is Ending.REPEAT:
        real = [min(max(taken - rank * rows, 0), rows) for rank in range(where.of)]
        yield _filled(own, real, start, where, rows)
    else:
        bounds = [rank * taken // where.of for rank in range(where.of + 1)]
        counts = tuple(end - begin for begin, end in pairwise(bounds))
        own = kept[bounds[where.index] : bounds[where.index + 1]] or kept[:1]
        yield RankSlice(own, BatchPadding(counts, tuple(max(count, 1) for count in counts)))


def slices_of_batches(
    stream: Iterable[T],
    where: DataRank,
    *,
    ending: Ending,
    start: Sequence[T] = (),
    at_end: Iterable[T] = (),
    length: Length = samples_of,
) -> Iterator[RankSlice[Any]]:
    """The slices of one rank, when each round is `where.of` whole batches of the stream, which vary.

    `start` and `at_end` are as for `slices_of_samples`, and `length` counts the samples of a batch.
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
    """One rank's batch of a round with fewer batches than ranks, or with a short last one, if it gets one.

    With `rows`, batches are filled up to that many samples; without, whole ones are repeated.
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
    """A rank's `own` samples of a last round, in which all have `real` ones, filled up from the start of the epoch.

    What lies behind the end is the start again; what is shorter than a round goes round and round.
    """
    again = sum(max(rows - count, 0) for count in real[: where.index]) % max(len(start), 1)
    own = [*own, *islice(cycle(start), again, again + max(rows - len(own), 0))]
    return RankSlice(own, BatchPadding(tuple(real), tuple(max(rows, count) for count in real)))


def slices_in(items: int, where: DataRank, *, ending: Ending, rows: int = 1) -> int:
    """How many slices a rank gets of `items` samples, or of `items` batches when a slice is one batch."""
    rounds, left = divmod(items, rows * where.of)
    if ending is Ending.DROP:
        return rounds
    if ending is Ending.UNEVEN:
        return rounds + (left > where.index * rows)
    return rounds + (left > 0)


def refuse_split(owner: object, batch_size: int | None, world: int) -> None:
    """Returns when every batch of `owner` can be divided among `world` processes.

    Raises: ValueError for batches without a size, or with one that does not divide.
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
    """Each item, and whether it is the last; one item is read ahead."""
    source = iter(stream)
    for held in source:
        for following in source:
            yield held, False
            held = following
        yield held, True
