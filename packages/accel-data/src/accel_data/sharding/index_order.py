"""The order of one epoch, dealt to a rank from any position on, with a digest of what is before."""

from __future__ import annotations

import operator
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from operator import length_hint
from typing import Any, final

import torch
from accel_ops.content_hash import content_number
from accel_state import BatchPadding
from torch.utils.data import RandomSampler, SequentialSampler

from accel_data.sharding.rank_slices import DataRank, Ending, last_of_batches, last_of_samples
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

#: one item in this many is noted; it is prime, so that no sampler of a regular pattern hides from it
EVERY = 31
#: so are the newest samples, or batches: an order that differs from some position on differs there
NEWEST = 16
NEWEST_BATCHES = 4
#: indices that are turned into Python numbers at a time, about
CHUNK = 8192
#: rounds of which the digests are made in a row
SETTLED = 64


@final
class KnownOrder:
    """An order of sample indices that is known at once, so that any position is found at once.

    Args:
        indices: The whole order.
        skip: Items of the order to skip.
        generator: Generator of a RandomSampler of torch, which draws once more at the end of the epoch.
    """

    def __init__(self, indices: range | torch.Tensor, skip: int, generator: torch.Generator | None = None) -> None:
        self.indices = indices
        #: all items
        self.end = len(indices)
        #: which batch is the last one, and what is real in it
        self.last: int | None = None
        self.tail: BatchPadding | None = None
        self._skip = skip
        self._generator = generator
        self._ended = False

    def deal(self, where: DataRank, *, rows: int | None, ending: Ending) -> Iterator[Iterable[Any]]:
        """Yield the batches of one rank, some at a time.

        Only indices of this rank become Python numbers.

        Args:
            where: The rank.
            rows: Samples of a batch; None is 1.
            ending: What happens to samples that do not fill a round of all ranks.
        """
        rows = rows or 1
        size = rows * where.of
        full, left = divmod(max(self.end - self._skip, 0), size)
        rest, start = self._numbers(self.end - left, self.end), self._numbers(0, size)
        short = list(last_of_samples(rest, start, where, rows=rows, ending=ending))
        self.last, self.tail = full + len(short), short[0].tail if short else None
        first = self._skip + where.index * rows
        if isinstance(self.indices, range):
            yield (list(self.indices[begin : begin + rows]) for begin in range(first, first + full * size, size))
        elif full:
            mine = self.indices.as_strided((full, rows), (size, 1), self.indices.storage_offset() + first)
            for chunk in torch.split(mine, max(CHUNK // rows, 1)):
                yield chunk.tolist()
        yield [part.items for part in short]
        self._end()

    def digest(self, count: int) -> int:
        """Return a checksum of the first `count` items that differs for most other orders."""
        newest = self._numbers(max(count - NEWEST, 0), count)
        return zlib.crc32(array("Q", self._numbers(0, count, EVERY) + newest))

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Return a context in which the generator is in its state at the end of the epoch.

        It is used at the last batch.
        """
        if self._generator is None or self._ended:
            yield
            return
        before = self._generator.get_state()
        self._end()
        try:
            yield
        finally:
            self._ended = False
            self._generator.set_state(before)

    def _end(self) -> None:
        self._ended = True
        if self._generator is not None:
            # torch's sampler ends with a second permutation, of which it uses nothing: later epochs depend on it
            torch.randperm(self.end, generator=self._generator, device=self._generator.device)

    def _numbers(self, start: int, stop: int, step: int = 1) -> list[int]:
        part = self.indices[start:stop:step]
        return part.tolist() if isinstance(part, torch.Tensor) else list(part)


@final
class LazyOrder:
    """An order that is read from its start, and known as far as it was read.

    Items up to `skip` are read at once.

    Args:
        items: Samples or batches of a sampler.
        skip: Items of the order to skip.
        round_size: Items that all ranks take together.
        whole: Whether items are batches.
    """

    def __init__(self, items: Iterator[Any], skip: int, round_size: int, *, whole: bool = False) -> None:
        self._items = items
        self._whole = whole  # items are batches
        self._skip, self._round = skip, round_size
        #: items that were read, which is a round more than were dealt
        self.end = 0
        #: as of a `KnownOrder`, once that batch is dealt
        self.last: int | None = None
        self.tail: BatchPadding | None = None
        self._numbers: Callable[[list[Any]], array[int]] = batch_numbers if whole else sample_numbers
        self._window = NEWEST_BATCHES if whole else NEWEST
        #: the digest after each round that was read, but for the newest rounds: theirs are made many in a row
        self._digests = array("I")
        #: a checksum of the items that are noted, and as it was after each of the newest rounds
        self._noted, self._checksums = 0, list[int]()
        #: the newest items of each of them, behind those of the round before
        self._newest, self._before = array("Q"), 0
        self._start = self._take(min(round_size, skip))
        while self._take(min(CHUNK, skip - self.end)):
            pass
        self._settle()
        del self._digests[:-1]
        # most samplers draw with the first item
        self._items = chain(list(islice(items, 1)), items)

    def deal(self, where: DataRank, *, rows: int | None, ending: Ending) -> Iterator[Iterable[Any]]:
        """Yield the batches of one rank, one or a few at a time.

        One round is read ahead.

        Args:
            where: The rank.
            rows: Samples of a batch, or None if batches vary.
            ending: What happens to samples that do not fill a round of all ranks.
        """
        size = rows or 1
        own: Any = where.index if self._whole else slice(where.index * size, (where.index + 1) * size)
        least = rows or 0 if self._whole else 0
        items, count, window, checksums = self._items, self._round, self._window, self._checksums
        start, held, short, note = self._start, list[Any](), list[Any](), self._newest.append
        # As `_take` and `batch_numbers` do: calls of them would cost each batch a microsecond on CPython 3.11. Python
        # code between two batches runs three times as long as in a loop of its own, as torch takes the caches.
        while len(taken := [*islice(items, count)]) == count:
            following = -self.end % EVERY
            self.end += count
            if following < count:
                self._noted = zlib.crc32(self._numbers(taken[following::EVERY]), self._noted)
            newest = taken if count <= window else taken[-window:]
            if self._whole:
                for batch in newest:
                    try:
                        note(31 * batch[0] + batch[-1])
                    except (TypeError, LookupError, OverflowError):  # it is no list of indices
                        note(_batch_number(batch))
            else:
                self._newest += self._numbers(newest)
            checksums.append(self._noted)
            if len(checksums) == SETTLED:
                self._settle()
            start = start or taken
            # a round whose last batch is short ends in another way if it is the last of all
            short = taken if least and length_hint(taken[-1], 1) < least else []
            if short and ending is Ending.DROP:
                held.append(taken[own])
            else:
                yield held
                held = [taken[own]]
            taken = newest = batch = []  # batches of other ranks are let go before the next ones come
        full = max(self.end - self._skip, 0) // count
        self._items = iter(taken)
        taken = self._take(count)
        if short and not taken:
            taken, full = short, full - 1
            held.pop()
        start = start or taken
        last = last_of_samples(taken, start, where, rows=size, ending=ending)
        if self._whole:
            last = last_of_batches(taken, start, where, rows=rows, ending=ending)
        self.last = full
        for batch, self.tail in last:
            held.append(batch)
            self.last += 1
        yield held

    def digest(self, count: int) -> int:
        """Return a checksum, as `KnownOrder.digest`.

        Args:
            count: Number of items, at the end of a round.
        """
        self._settle()
        return self._digests[-(-max(count - self._skip, 0) // self._round)]

    def ended(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing, as the order was read to its end at the last batch."""
        return nullcontext()

    def _take(self, count: int) -> list[Any]:
        """Return the next items, and note what tells them from others."""
        items = list(islice(self._items, count))
        following = -self.end % EVERY
        if following < len(items):
            self._noted = zlib.crc32(self._numbers(items[following::EVERY]), self._noted)
        self.end += len(items)
        self._newest += self._numbers(items[-self._window :])
        self._checksums.append(self._noted)
        if len(items) != self._round:
            self._settle()
        return items

    def _settle(self) -> None:
        """Make the digests of the rounds that have none, of which only the last may have been short."""
        numbers, checksums, each = self._newest, self._checksums, min(self._round, self._window)
        if not checksums:
            return
        ends = [*range(self._before + each, self._before + each * len(checksums), each), len(numbers)]
        newest = [numbers[max(end - self._window, 0) : end] for end in ends]
        self._digests.extend(map(zlib.crc32, newest, checksums))
        # in place: `deal` holds on to both
        del numbers[: -self._window]
        checksums.clear()
        self._before = len(numbers)


IndexOrder = KnownOrder | LazyOrder


def draw(sampler: Any, skip: int, round_size: int) -> IndexOrder:
    """Draw the order of the next epoch, at once if torch's sampler would.

    Args:
        sampler: Any sampler; another than those of torch is read as batches are dealt.
        skip: Items of the order to skip.
        round_size: Items that all ranks take together.
    """
    if type(sampler) is SequentialSampler:
        return KnownOrder(range(len(sampler.data_source)), skip)
    stock = type(sampler).__iter__ in (RandomSampler.__iter__, SeedableRandomSampler.__iter__)
    if stock and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        if isinstance(sampler, SeedableRandomSampler):
            sampler.begin_epoch()
        # as RandomSampler does, less its list of Python numbers, of which a rank needs only its share
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()))
        order = torch.randperm(len(sampler.data_source), generator=generator, device=generator.device)
        return KnownOrder(order, skip, sampler.generator)
    return LazyOrder(iter(sampler), skip, round_size)


def sample_numbers(items: list[Any]) -> array[int]:
    """Return a number for each item, which is the same in every process.

    The number is an index itself, or a checksum of any other item.
    """
    try:
        return array("Q", items)
    except (TypeError, OverflowError):  # not all are indices
        return array("Q", map(content_number, items))


def batch_numbers(batches: list[Any]) -> array[int]:
    """Return a number for each batch, made of its first and its last item."""
    try:
        return array("Q", [31 * batch[0] + batch[-1] for batch in batches])
    except (TypeError, LookupError, OverflowError):  # not all are lists of indices
        return array("Q", map(_batch_number, batches))


def _batch_number(batch: Any) -> int:
    try:
        return (31 * operator.index(batch[0]) + operator.index(batch[-1])) % 2**64
    except (TypeError, LookupError):  # it has no indices, is empty, or can only be iterated, once
        return content_number(batch)
