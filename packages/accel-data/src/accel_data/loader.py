"""A DataLoader that serves one rank: on its device, telling the clock which batch is the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from accel_ops import send_to_device
from accel_state import Device, Epoch, StepClock, Transport
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import sampler as torch_samplers

from accel_data.iterable import IterableDatasetShard, Tailed
from accel_data.order import FollowRankZero
from accel_data.plan import with_last
from accel_data.rng import RNGType, synchronize_rng_states
from accel_data.samplers import BatchSamplerShard, follows_torch, inner_sampler

Batch = TypeVar("Batch")


def mover(device: torch.device | str | None, *, non_blocking: bool) -> Callable[[Any], Any] | None:
    """What puts a batch on `device`; None where batches are there already."""
    if device is None:
        return None
    if torch.device(device).type == "cpu" and not torch.accelerator.is_available():
        return None  # walking through every batch would cost time and change nothing
    return lambda batch: send_to_device(batch, device, non_blocking=non_blocking)


class DataLoaderShard(DataLoader[Batch]):
    """A DataLoader that serves one rank: on its device, telling the clock which batch is the last.

    Each pass is a new epoch: `set_epoch` is passed on to whatever takes it. With a transport, generators named by
    `rng_types` are made equal to those of rank 0 at the start of each pass, and so are those that `follows` watches.

    Collective: with a transport, every rank must start and end each pass.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | str | None = None,
        rng_types: Iterable[str | RNGType] | None = None,
        *,
        transport: Transport | None = None,
        hardware: Device | None = None,
        clock: StepClock | None = None,
        non_blocking: bool = False,
        **loader_settings: Any,
    ) -> None:
        super().__init__(dataset, **loader_settings)
        self.device = device
        self.rng_types = list(rng_types or ())
        self.iteration = 0
        self.clock = clock or StepClock()
        self.follows: list[FollowRankZero] = []
        self._transport = transport
        self._hardware = hardware
        self._non_blocking = non_blocking

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._synchronize()
        self.set_epoch(self.iteration)
        move = mover(self.device, non_blocking=self._non_blocking)
        with self.clock.iterating(self) as epoch:
            try:
                for batch in self._batches(epoch):
                    yield batch if move is None else move(batch)
            finally:
                self.iteration += 1

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for every sampler and dataset that has epochs."""
        self.iteration = epoch
        owner: Any = self.batch_sampler if self.batch_sampler is not None else self.sampler
        while owner is not None:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
            owner = inner_sampler(owner)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    @property
    def total_batch_size(self) -> int | None:
        """Samples of a batch of the whole job; None when batches vary."""
        shard = self._shard
        if isinstance(shard, BatchSamplerShard):
            return None if shard.rows is None else shard.rows * shard.where.of
        if isinstance(self.dataset, IterableDatasetShard):
            return None if self.dataset.rows is None else self.dataset.rows * self.dataset.where.of
        return getattr(shard, "batch_size", self.batch_size)

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole dataset."""
        dataset: Any = self.dataset.dataset if isinstance(self.dataset, IterableDatasetShard) else self.dataset
        return len(dataset)

    @property
    def _shard(self) -> Any:
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def _synchronize(self) -> None:
        if self._transport is None:
            return
        others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
        synchronize_rng_states(others, transport=self._transport, device=self._hardware)
        for follow in self.follows:
            follow()

    def _batches(self, epoch: Epoch) -> Iterator[Any]:
        """The batches of one pass; `epoch` is true of each before it is yielded."""
        shard = self._shard
        batches = super().__iter__()
        if isinstance(shard, BatchSamplerShard):
            for number, batch in enumerate(batches):
                if shard.last is not None and shard.last[0] == number:
                    epoch.last, epoch.tail = True, shard.last[1]
                yield batch
        elif (length := self._known_length()) is not None:
            for number, batch in enumerate(batches, start=1):
                epoch.last = number == length
                yield batch
        else:
            for batch, last in with_last(batches):
                epoch.last = last
                epoch.tail = batch.tail if type(batch) is Tailed else None
                yield batch.value if type(batch) is Tailed else batch

    def _known_length(self) -> int | None:
        """The number of batches where torch itself counts them; what a user's class says of its length may be wrong."""
        stock = type(getattr(self.batch_sampler, "sampler", None)).__module__ == torch_samplers.__name__
        if isinstance(self.dataset, IterableDataset) or not follows_torch(self.batch_sampler) or not stock:
            return None
        return len(self)
