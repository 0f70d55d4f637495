"""Samplers that give one rank its share of another sampler's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from accel_state import Tail
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from accel_data.plan import DataRank, Ending, Part, deal_batches, deal_samples, parts_in, refuse_split, with_last


def follows_torch(batch_sampler: object) -> bool:
    """Whether the object cuts the order of its sampler into batches just as torch's own BatchSampler does."""
    return isinstance(batch_sampler, BatchSampler) and type(batch_sampler).__iter__ is BatchSampler.__iter__


class BatchSamplerShard(BatchSampler):
    """One rank's batches of a batch sampler: every `num_processes`-th one, or its slice of each when batches are split.

    Only this rank's indices are turned into samples. `synchronize`, when given, is called at the start of each epoch,
    before the order is drawn.
    """

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
        *,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        where = DataRank(process_index, num_processes)
        size: Any = getattr(batch_sampler, "batch_size", None)
        if split_batches:
            refuse_split(batch_sampler, size, num_processes)
        self.batch_sampler = batch_sampler
        self.sampler = getattr(batch_sampler, "sampler", batch_sampler)
        self.where = where
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size: Any = size
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        self.synchronize = synchronize
        #: number of the last batch of the running epoch, and what is real in it; known before that batch is yielded
        self.last: tuple[int, Tail | None] | None = None

    @property
    def rows(self) -> int | None:
        """Samples in each batch of this rank; None when they vary."""
        if self.batch_size is None:
            return None
        return int(self.batch_size) // self.where.of if self.split_batches else int(self.batch_size)

    @property
    def total_length(self) -> int:
        """Batches of the whole job."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        self.last = None
        if self.synchronize is not None:
            self.synchronize()
        for number, (part, last) in enumerate(with_last(self._parts())):
            if last:
                self.last = number, part.tail
            yield part.items

    def __len__(self) -> int:
        if follows_torch(self.batch_sampler) and self.rows is not None:
            return parts_in(len(self.batch_sampler.sampler), self.where, ending=self._ending, rows=self.rows)
        batches = len(self.batch_sampler)
        return batches if self.split_batches else parts_in(batches, self.where, ending=self._ending)

    @property
    def _ending(self) -> Ending:
        return Ending.of(drop_last=self.drop_last, even_batches=self.even_batches)

    def _parts(self) -> Iterator[Part[Any]]:
        if self.rows is not None and follows_torch(self.batch_sampler):
            return deal_samples(self.batch_sampler.sampler, self.where, rows=self.rows, ending=self._ending)
        if self.rows is not None and self.split_batches:
            samples = chain.from_iterable(self.batch_sampler)
            return deal_samples(samples, self.where, rows=self.rows, ending=self._ending)
        return deal_batches(self.batch_sampler, self.where, rows=self.rows, ending=self._ending)


class SeedableRandomSampler(RandomSampler):
    """A RandomSampler whose order is a function of a seed and the epoch alone."""

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed((self.initial_seed + self.epoch) % 2**63)
        self.generator = generator
        yield from super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next pass has."""
        self.epoch = epoch


def inner_sampler(sampler: Any) -> Any:
    """The sampler under a batch sampler or a shard of one; None where there is none."""
    # by identity: the truth of a sampler is its length, which it may not have
    inner = getattr(sampler, "batch_sampler", None)
    return inner if inner is not None else getattr(sampler, "sampler", None)


def innermost_sampler(sampler: Any) -> Any:
    """The sampler that draws the order, under any number of batch samplers."""
    while True:
        inner = inner_sampler(sampler)
        if not isinstance(inner, Sampler) and not hasattr(inner, "__iter__"):
            return sampler
        sampler = inner
