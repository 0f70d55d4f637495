"""Which samples a rank gets: index arithmetic over any stream, without a process group.

A *round* is what all ranks take together; a *part* is one rank's piece of it; `rows` counts the samples of a part.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, cycle, islice
from typing import Any, Generic, TypeVar

from accel_state import Tail

T = TypeVar("T")


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

    REPEAT = "repeat"  # every rank gets equally many; samples from the start are seen again
    DROP = "drop"
    UNEVEN = "uneven"  # ranks may differ by one part

    @classmethod
    def of(cls, *, drop_last: bool, even_batches: bool) -> "Ending":
        """The ending that two flags of a loader ask for."""
        if drop_last:
            return cls.DROP
        return cls.REPEAT if even_batches else cls.UNEVEN


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One rank's piece of a round; `tail` says what is real in it, None when everything is."""

    items: T
    tail: Tail | None = None


def deal_samples(stream: Iterable[T], where: DataRank, *, rows: int, ending: Ending) -> Iterator[Part[list[T]]]:
    """The parts of one rank, when each round is `where.of` parts of `rows` consecutive samples of the stream."""
    source = iter(stream)
    size = rows * where.of
    mine = slice(where.index * rows, (where.index + 1) * rows)
    taken = list(islice(source, size))
    start = taken
    while len(taken) == size:
        yield Part(taken[mine])
        taken = list(islice(source, size))
    if not taken or ending is Ending.DROP:
        return
    if ending is Ending.UNEVEN:
        if taken[mine]:
            yield Part(taken[mine])
        return
    # The stream continues from its start; one that is shorter than a round goes round and round.
    filled = taken + list(islice(cycle(start), size - len(taken)))
    yield Part(filled[mine], Tail(real=len(taken), ranks=-(-len(taken) // rows), rows=rows))


def deal_batches(
    stream: Iterable[T], where: DataRank, *, rows: int | None, ending: Ending
) -> Iterator[Part[T | list[Any]]]:
    """The parts of one rank, when each round is `where.of` whole batches of the stream.

    With `rows`, a short batch at the very end is filled up to that many samples; without, batches vary and whole ones
    are repeated.
    """
    source = iter(stream)
    taken = list(islice(source, where.of))
    start = taken
    while len(taken) == where.of:
        following = list(islice(source, where.of))
        if not following and rows is not None and _length(taken[-1]) < rows:
            break
        yield Part(taken[where.index])
        taken = following
    if not taken or ending is Ending.DROP:
        return
    if ending is Ending.UNEVEN:
        if where.index < len(taken):
            yield Part(taken[where.index])
        return
    real = sum(_length(batch) for batch in taken)
    filled: list[Any]
    if rows is None:
        filled = taken + list(islice(cycle(start), where.of - len(taken)))
    else:
        again: Iterator[Any] = cycle(chain.from_iterable(map(_as_list, start)))
        filled = [*taken[:-1], _as_list(taken[-1]) + list(islice(again, rows - _length(taken[-1])))]
        filled += [list(islice(again, rows)) for _ in range(where.of - len(taken))]
    part = filled[where.index]
    yield Part(part, Tail(real=real, ranks=len(taken), rows=_length(part)))


def parts_in(count: int, where: DataRank, *, ending: Ending, rows: int = 1) -> int:
    """How many parts a rank gets of `count` samples, or of `count` batches when a part is one batch."""
    rounds, left = divmod(count, rows * where.of)
    if ending is Ending.REPEAT:
        return rounds + (left > 0)
    if ending is Ending.DROP:
        return rounds
    return rounds + (left > where.index * rows)


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


def _as_list(batch: Any) -> list[Any]:
    return list(batch)
