"""Load the batches of the whole job in one process, by the DataLoader of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import chain, cycle, islice
from typing import Any, final

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from accel_verify.step_watcher import StepWatcher


class CannotVerify(BaseException):
    """An error of a script that cannot be compared with plain PyTorch in one process.

    It is no Exception, so that the handlers of a script do not catch it.
    """


@final
class GlobalBatches(Sampler[list[int]]):
    """The batches of indices that all ranks take together in each step.

    Args:
        batches: The batch sampler of the script.
        ranks: Number of ranks.
        split: True if the ranks share each batch of the script; false if each rank takes a batch.
        ending: What happens to a short last batch: "pad" fills it up from the start, "drop" leaves it out, and
            anything else keeps it short.
    """

    def __init__(self, batches: Any, ranks: int, *, split: bool, ending: str) -> None:
        self.batches = batches
        self._ending = ending if ranks > 1 else "join"
        # accel deals out the samples of a BatchSampler of torch, and whole batches of another
        self._by_sample = type(batches).__iter__ is BatchSampler.__iter__
        self._taken = (1 if split else ranks) * (batches.batch_size if self._by_sample else 1)

    def __iter__(self) -> Iterator[list[int]]:
        parts: Iterable[list[int]] = self.batches
        if self._by_sample:
            parts = ([index] for batch in self.batches for index in batch)
        source = iter(parts)
        start: list[list[int]] = []
        while taken := list(islice(source, self._taken)):
            start = start or taken
            if len(taken) < self._taken and self._ending == "drop":
                return
            if len(taken) < self._taken and self._ending == "pad":
                taken += islice(cycle(start), self._taken - len(taken))
            yield list(chain.from_iterable(taken))

    def __len__(self) -> int:
        parts = len(self.batches.sampler if self._by_sample else self.batches)
        if self._by_sample and self.batches.drop_last:
            parts -= parts % self.batches.batch_size
        return parts // self._taken if self._ending == "drop" else -(-parts // self._taken)


@final
class GlobalLoader(DataLoader[Any]):
    """A DataLoader that joins the batches of all ranks into one, and counts how many are left.

    Args:
        loader: The loader of the script.
        batches: The indices of each batch, or None for a loader without batches.
        passes: The loaders that are being iterated, the active one last; this loader adds itself.
        watcher: Ends the script before a batch if all steps were made.
    """

    def __init__(
        self, loader: DataLoader[Any], batches: GlobalBatches | None, passes: list[GlobalLoader], watcher: StepWatcher
    ) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise CannotVerify("a loader of an IterableDataset: only map-style data is served as plain PyTorch would")
        settings = {name: getattr(loader, name) for name in signature(DataLoader).parameters if hasattr(loader, name)}
        settings |= {"batch_sampler": batches, "batch_size": 1, "sampler": None, "drop_last": False}
        if batches is None:
            settings |= {"batch_size": None, "sampler": loader.sampler}
        super().__init__(**settings)
        self.left: int | None = None
        self._passes = passes
        self._watcher = watcher
        #: the number of the next pass, or of the one that runs; copies without first batches count them here too
        self.iteration, self._counter = 0, self
        #: how many batches each pass leaves out at its beginning
        self.skipped = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names a private class of its own
        self.set_epoch(self._counter.iteration)
        self._passes.append(self)
        try:
            for number, batch in enumerate(super().__iter__(), start=1):
                if number > self.skipped:
                    self._watcher.stop_if_done()
                    self.left = len(self) - number
                    self._passes.sort(key=lambda running: running is self)
                    yield batch
        finally:
            self._counter.iteration += 1
            self._passes.remove(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, for samplers and datasets that have epochs."""
        batches = getattr(self.batch_sampler, "batches", None)
        owners: list[Any] = [self.dataset, self.sampler, batches, getattr(batches, "sampler", None)]
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        self._counter.iteration = epoch
