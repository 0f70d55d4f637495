"""The order of one epoch: dealt to a rank from any place on, with a digest of what lies before that place."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, final

import torch
from accel_state import Tail
from torch.utils.data import RandomSampler, SequentialSampler

from accel_data.sharding.order_hash import batch_hash, first_numbers, numbers
from accel_data.sharding.rank_slices import (
    DataRank,
    Ending,
    RankSlice,
    last_slice,
    slices_of_batches,
    slices_of_samples,
)
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

#: one item in this many enters the digest, of a batch its first sample
EVERY = 8
#: so do the newest samples, or the newest batch: an order that differs from some place on differs there
NEWEST = 16
#: indices that are turned into Python numbers at a time, about
CHUNK = 8192


@dataclass(slots=True)
class LastBatch:
    """Which batch of a rank is the last of a pass, known before it comes, and what is real in it."""

    number: int | None = None
    tail: Tail | None = None


class IndexOrder(ABC):
    """The items of one epoch: sample indices, or batches of them."""

    @property
    @abstractmethod
    def end(self) -> int:
        """How many items there are, as far as they were looked at."""

    @abstractmethod
    def seek(self, skip: int, round_size: int) -> None:
        """Draws the order, and goes to item `skip`; what is dealt begins there."""

    @abstractmethod
    def deal(self, where: DataRank, *, rows: int | None, ending: Ending, last: LastBatch) -> Iterator[Any]:
        """The batches of one rank; `last` tells the last one.

        An item is a sample, of which a batch has `rows`, or a whole batch.
        """

    @abstractmethod
    def digest(self, count: int) -> int:
        """A number that tells the first `count` items, of which all were dealt, from those of most other orders."""

    @abstractmethod
    @contextmanager
    def ended(self) -> Iterator[None]:
        """In this block, at the last batch, generators stand where the end of the pass leaves them."""


@final
class KnownOrder(IndexOrder):
    """An order of sample indices that is known at once; any place in it is found at once."""

    def __init__(self, indices: range | torch.Tensor, generator: torch.Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator
        self._skip = 0
        self._ended = False

    @property
    def end(self) -> int:
        """All items."""
        return len(self.indices)

    def seek(self, skip: int, round_size: int) -> None:
        """As `IndexOrder`, at no cost."""
        self._skip = skip

    def deal(self, where: DataRank, *, rows: int | None, ending: Ending, last: LastBatch) -> Iterator[Any]:
        """As `IndexOrder`; only this rank's indices become Python numbers."""
        # one loop in C: a chain of generators would cost each batch a frame for every link
        return chain.from_iterable(self._blocks(where, rows or 1, ending, last))

    def _blocks(self, where: DataRank, rows: int, ending: Ending, last: LastBatch) -> Iterator[Iterable[Any]]:
        skip = self._skip
        size, count = rows * where.of, len(self.indices)
        full, left = divmod(max(count - skip, 0), size)
        part = None
        if left:
            rest, start = self._numbers(skip + full * size, count), self._numbers(0, min(size, count))
            part = last_slice(rest, start, where, rows=rows, ending=ending)
        last.number = full + (part is not None)
        if part is None or not full:
            last.tail = None if part is None else part.tail
        yield from self._rounds(skip + where.index * rows, rows, size, full)
        if part is not None:
            last.tail = part.tail
            yield (part.items,)
        self._end()

    def _end(self) -> None:
        self._ended = True
        if self.generator is not None:
            # torch's sampler ends with a second permutation, of which it uses nothing: later epochs depend on it
            torch.randperm(len(self.indices), generator=self.generator)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """As `IndexOrder`."""
        if self.generator is None or self._ended:
            yield
            return
        before = self.generator.get_state()
        self._end()
        try:
            yield
        finally:
            self._ended = False
            self.generator.set_state(before)

    def digest(self, count: int) -> int:
        """As `IndexOrder`."""
        return zlib.crc32(array("q", self._numbers(0, count, EVERY)))

    def _numbers(self, start: int, stop: int, step: int = 1) -> list[int]:
        part = self.indices[start:stop:step]
        return part.tolist() if isinstance(part, torch.Tensor) else list(part)

    def _rounds(self, first: int, rows: int, size: int, count: int) -> Iterator[Iterable[list[int]]]:
        if isinstance(self.indices, range):
            yield (list(self.indices[begin : begin + rows]) for begin in range(first, first + count * size, size))
            return
        if not count:
            return
        mine = self.indices.as_strided((count, rows), (size, 1), self.indices.storage_offset() + first)
        for few in torch.split(mine, max(CHUNK // rows, 1)):
            yield few.tolist()


@final
class LazyOrder(IndexOrder):
    """An order that is read from its front; it is known as far as it was read."""

    def __init__(self, items: Iterator[Any], *, whole: bool = False) -> None:
        self.items = items
        self._whole = whole  # items are batches
        self._start: list[Any] = []
        self._read = 0
        self._skip, self._round = 0, 1
        self._noted = array("q")
        self._newest: Any = []
        #: a digest of the newest items, where it began and after each round
        self._tails = array("Q", [0])

    @property
    def end(self) -> int:
        """Items that were read, one round more than were dealt."""
        return self._read

    def seek(self, skip: int, round_size: int) -> None:
        """As `IndexOrder`; what lies before is read, and so is one item more, as most samplers draw with the first."""
        self._start = self._pass(min(round_size, skip))
        while self._read < skip and self._pass(min(CHUNK, skip - self._read)):
            pass
        self._skip, self._round = skip, round_size
        self._tails = self._tails[-1:]
        self.items = chain(list(islice(self.items, 1)), self.items)

    def deal(self, where: DataRank, *, rows: int | None, ending: Ending, last: LastBatch) -> Iterator[Any]:
        """As `IndexOrder`; one round is read ahead."""
        start, note = self._start, self._note
        if self._whole and where.of == 1:
            yield from self._alone(last, rows)
            return
        if self._whole:
            slices: Iterator[RankSlice[Any]] = slices_of_batches(
                self.items, where, rows=rows, ending=ending, start=start, note=note
            )
        else:
            slices = slices_of_samples(self.items, where, rows=rows or 1, ending=ending, start=start, note=note)
        number, held = 0, None
        for following in slices:
            if held is not None:
                number += 1
                yield held.items
            held = following
        if held is not None:
            last.number, last.tail = number + 1, held.tail
            yield held.items

    def _alone(self, last: LastBatch, rows: int | None) -> Iterator[Any]:
        """All batches, for the one rank there is; one is read ahead."""
        held: Any = None
        number, noted, tails = 0, self._noted, self._tails
        for following in self.items:
            if not self._read % EVERY:
                noted.extend(first_numbers([following]))
            self._read += 1
            tails.append(batch_hash(following))
            if number:
                yield held
            number += 1
            held = following
        if number:
            last.number = number
            if rows is not None and isinstance(held, Sequence) and len(held) < rows:
                last.tail = Tail((len(held),), (len(held),))
            yield held

    def digest(self, count: int) -> int:
        """As `IndexOrder`; `count` lies at the end of a round."""
        rounds = max(-(-(count - self._skip) // self._round), 0)
        return zlib.crc32(self._noted[: -(-count // EVERY)], self._tails[rounds])

    @contextmanager
    def ended(self) -> Iterator[None]:
        """As `IndexOrder`: at its last batch it was read to its end."""
        yield

    def _pass(self, count: int) -> list[Any]:
        passed = list(islice(self.items, count))
        self._note(passed)
        return passed

    def _note(self, taken: list[Any]) -> None:
        if not taken:
            return
        some = taken[-self._read % EVERY :: EVERY]
        if self._whole:
            noted, self._newest = first_numbers(some), taken[-1]
        else:
            noted = numbers(some)
            self._newest = (taken if len(taken) >= NEWEST else [*self._newest, *taken])[-NEWEST:]
        self._read += len(taken)
        self._noted.extend(noted)
        self._tails.append(batch_hash(self._newest))


def draw(sampler: Any) -> IndexOrder:
    """Draws the order of the next epoch: at once where torch's own sampler would, else as it is read."""
    if type(sampler) is SequentialSampler:
        return KnownOrder(range(len(sampler.data_source)))
    if isinstance(sampler, RandomSampler) and _permutes(sampler):
        if isinstance(sampler, SeedableRandomSampler):
            sampler.begin_epoch()
        # as RandomSampler does, less its list of Python numbers, of which a rank needs only its share
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        return KnownOrder(torch.randperm(len(sampler.data_source), generator=generator), sampler.generator)
    return LazyOrder(iter(sampler))


def _permutes(sampler: RandomSampler) -> bool:
    stock = type(sampler).__iter__ in (RandomSampler.__iter__, SeedableRandomSampler.__iter__)
    return stock and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
