"""Serves in one process the batches of the whole job, by torch's own DataLoader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from typing import Any, Self, final

from accel_data.loaders.loader_kwargs import settings_of
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

Passes = list["GlobalLoader"]


class CannotVerify(BaseException):
    """The script does what plain PyTorch in one process has no equal for; no handler of its own should catch it."""


@final
class GlobalBatches(Sampler[list[int]]):
    """The indices that all ranks take in one round, as one batch; a short last one is filled up as `ending` says."""

    def __init__(self, batches: Any, ranks: int, *, split: bool, ending: str) -> None:
        self.batches = batches
        self.ranks = ranks
        self.ending = ending
        self.stock = type(batches).__iter__ is BatchSampler.__iter__
        self.size = (batches.batch_size if split else batches.batch_size * ranks) if self.stock else None
        self.together = 1 if split else ranks

    def __iter__(self) -> Iterator[list[int]]:
        if self.ranks == 1:
            yield from self.batches
            return
        source = iter(chain.from_iterable(self.batches)) if self.stock else iter(self.batches)
        size = self.size if self.size is not None else self.together
        start: list[Any] = []
        while taken := list(islice(source, size)):
            start = start or taken
            if len(taken) < size and self.ending == "drop":
                return
            if len(taken) < size and self.ending == "pad":
                taken += islice(cycle(start), size - len(taken))
            yield taken if self.stock else list(chain.from_iterable(taken))

    def __len__(self) -> int:
        if self.ranks == 1:
            return len(self.batches)
        items = len(self.batches.sampler) if self.size is not None else len(self.batches)
        if self.stock and self.batches.drop_last:
            items -= items % self.batches.batch_size
        size = self.size if self.size is not None else self.together
        return items // size if self.ending == "drop" else -(-items // size)


@final
class GlobalLoader(DataLoader[Any]):
    """A DataLoader whose batches are those of all ranks together; knows how many are left."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        ranks: int,
        split: bool,
        ending: str,
        passes: Passes,
        check: Callable[[], None],
    ) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise CannotVerify("a loader of an IterableDataset: only map-style data is served as plain PyTorch would")
        if loader.batch_sampler is None and ranks > 1:
            raise CannotVerify("a DataLoader with batch_size=None: its items cannot be put together into one batch")
        kept: dict[str, Any] = {"sampler": loader.sampler, "batch_size": None}
        if loader.batch_sampler is not None:
            kept = {"batch_sampler": GlobalBatches(loader.batch_sampler, ranks, split=split, ending=ending)}
        super().__init__(loader.dataset, **kept, **settings_of(loader))
        self.left: int | None = None
        self._passes = passes
        self._check = check
        self._begun = 0
        self._skipped = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.set_epoch(self._begun)
        self._begun += 1
        count = len(self)
        self._passes.append(self)
        try:
            for number, batch in enumerate(super().__iter__(), start=1):
                if number <= self._skipped:
                    continue
                self._check()
                self.left = count - number
                if self._passes[-1] is not self:  # a batch of this pass comes: it is the one in hand
                    self._passes.remove(self)
                    self._passes.append(self)
                yield batch
        finally:
            self._passes.remove(self)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for samplers and datasets that have epochs."""
        owners = [self.dataset, self.sampler, self.batch_sampler]
        if isinstance(self.batch_sampler, GlobalBatches):
            owners += [self.batch_sampler.batches, getattr(self.batch_sampler.batches, "sampler", None)]
        for owner in {id(one): one for one in owners if hasattr(one, "set_epoch")}.values():
            owner.set_epoch(epoch)
        self._begun = epoch

    def without_first(self, batches: int) -> Self:
        """A loader whose passes lack their first batches."""
        twin = copy.copy(self)
        twin._skipped, twin._iterator = batches, None
        return twin
