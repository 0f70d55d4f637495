"""Which samples a rank gets: index arithmetic over any order, without a process group.

A *round* is what all ranks take together; a *slice* is one rank's piece of it; `rows` counts the samples of a slice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, cycle, islice
from typing import Any, Generic, NamedTuple, TypeVar

from accel_state import Tail

T = TypeVar("T")
#: called with the items of each round
Note = Callable[[list[Any]], object]

#: samples of other ranks that are held at a time
PIECE = 256


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


class RankSlice(NamedTuple, Generic[T]):
    """One rank's piece of a round; `tail` says what is real in it, None if everything is."""

    items: T
    tail: Tail | None = None


def slices_of_samples(
    stream: Iterable[T],
    where: DataRank,
    *,
    rows: int,
    ending: Ending,
    start: Sequence[T] = (),
    note: Note | None = None,
) -> Iterator[RankSlice[list[T]]]:
    """The slices of one rank, when each round is `where.of` slices of `rows` consecutive samples of the stream.

    `start` is the first round of the epoch, if the stream begins later. `note` is called with the samples of each
    round; without it the samples of other ranks are let go at once.
    """
    source = iter(stream)
    size = rows * where.of
    mine = slice(where.index * rows, (where.index + 1) * rows)
    taken = list(islice(source, size))
    start = start or taken
    if note is not None:
        note(taken)
    elif ending is not Ending.EXACT and len(taken) == size:
        yield RankSlice(taken[mine])
        yield from _own_samples(source, start if ending is Ending.REPEAT else (), where, rows=rows, ending=ending)
        return
    while len(taken) == size:
        yield RankSlice(taken[mine])
        taken = list(islice(source, size))
        if note is not None:
            note(taken)
    last = last_slice(taken, start, where, rows=rows, ending=ending)
    if last is not None:
        yield last


def _own_samples(
    source: Iterator[T], start: Sequence[T], where: DataRank, *, rows: int, ending: Ending
) -> Iterator[RankSlice[list[T]]]:
    """As `slices_of_samples`, without holding the samples of other ranks."""
    before, after = where.index * rows, (where.of - where.index - 1) * rows
    while True:
        taken = _pass_over(source, before) if before else 0
        mine = list(islice(source, rows))
        taken += len(mine)
        if after and len(mine) == rows:
            taken += _pass_over(source, after)
        if taken < before + rows + after:
            last = _short_slice(mine, taken, start, where, rows=rows, ending=ending)
            if last is not None:
                yield last
            return
        yield RankSlice(mine)


def _pass_over(source: Iterator[Any], items: int) -> int:
    """Reads that many items in small pieces, each of which is let go before the next; how many there were."""
    passed = 0
    while passed < items:
        piece = len(list(islice(source, min(PIECE, items - passed))))
        passed += piece
        if not piece:
            break
    return passed


def last_slice(
    taken: Sequence[T], start: Sequence[T], where: DataRank, *, rows: int, ending: Ending
) -> RankSlice[list[T]] | None:
    """One rank's slice of a round that is not full; None if it gets none."""
    if ending is not Ending.EXACT or not taken:
        mine = list(taken[where.index * rows : (where.index + 1) * rows])
        return _short_slice(mine, len(taken), start, where, rows=rows, ending=ending)
    bounds = [rank * len(taken) // where.of for rank in range(where.of + 1)]
    real = tuple(bounds[rank + 1] - bounds[rank] for rank in range(where.of))
    mine = list(taken[bounds[where.index] : bounds[where.index + 1]]) or [taken[0]]
    return RankSlice(mine, Tail(real, tuple(max(one, 1) for one in real)))


def _short_slice(
    mine: list[T], taken: int, start: Sequence[T], where: DataRank, *, rows: int, ending: Ending
) -> RankSlice[list[T]] | None:
    if not taken or ending is Ending.DROP:
        return None
    if ending is Ending.UNEVEN:
        if where.of == 1:  # with nobody else what is short is known to be the end of the job's data
            return RankSlice(mine, Tail((taken,), (taken,)))
        return RankSlice(mine) if mine else None
    # The stream continues from its start; a stream that is shorter than a round goes round and round.
    real = tuple(min(max(taken - rank * rows, 0), rows) for rank in range(where.of))
    first = max(where.index * rows - taken, 0) % len(start)
    mine = [*mine, *islice(cycle(start), first, first + rows - len(mine))]
    return RankSlice(mine, Tail(real, (rows,) * where.of))


def slices_of_batches(
    stream: Iterable[T],
    where: DataRank,
    *,
    rows: int | None,
    ending: Ending,
    start: Sequence[T] = (),
    length: Callable[[Any], int] | None = None,
    note: Note | None = None,
) -> Iterator[RankSlice[T | list[Any]]]:
    """The slices of one rank, when each round is `where.of` whole batches of the stream.

    With `rows`, a short batch at the very end is filled up to that many samples; without, batches vary and whole ones
    are repeated. `start` and `note` are as for `slices_of_samples`, and `length` counts the samples of a batch.
    """
    length = length or _length
    source = iter(stream)

    def following_round() -> list[Any]:
        batches = list(islice(source, where.of))
        if note is not None:
            note(batches)
        return batches

    taken = following_round()
    start = start or taken
    while len(taken) == where.of:
        if rows is None:  # nothing is filled up, so nothing is read ahead
            yield RankSlice(taken[where.index])
        following = following_round()
        if rows is not None:
            if not following and ending in (Ending.REPEAT, Ending.DROP) and length(taken[-1]) < rows:
                break
            yield RankSlice(taken[where.index])
        taken = following
    if not taken or ending is Ending.DROP:
        return
    if ending is Ending.UNEVEN:
        if where.index < len(taken):
            yield RankSlice(taken[where.index])
        return
    real = [length(batch) for batch in taken] + [0] * (where.of - len(taken))
    filled: list[Any]
    if ending is Ending.EXACT:
        filled = [*taken, *[_one_of(taken[0])] * (where.of - len(taken))]
    elif rows is None:
        filled = taken + list(islice(cycle(start), where.of - len(taken)))
    else:
        again: Iterator[Any] = cycle(chain.from_iterable(map(_as_list, start)))
        filled = [*taken[:-1], _as_list(taken[-1]) + list(islice(again, rows - length(taken[-1])))]
        filled += [list(islice(again, rows)) for _ in range(where.of - len(taken))]
    yield RankSlice(filled[where.index], Tail(tuple(real), tuple(length(batch) for batch in filled)))


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


def _length(batch: object) -> int:
    return len(batch) if isinstance(batch, Sequence) else 1


def _one_of(batch: Any) -> Any:
    return list(batch)[:1] if isinstance(batch, Sequence) else batch


def _as_list(batch: Any) -> list[Any]:
    return list(batch)
