"""A DataLoader that only rank 0 reads; the others receive their part of each round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from accel_ops import concatenate, find_batch_size, slice_tensors
from accel_state import Device, PeerFailed, StepClock, Tail, Transport
from torch.utils.data import DataLoader

from accel_data.loader import mover
from accel_data.plan import DataRank, Ending, parts_in, refuse_split, with_last
from accel_data.rng import RNGType, synchronize_rng_states

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Round:
    """What rank 0 tells the others: one batch of the whole job, the end of the data, or why there is no more."""

    data: Any = None
    last: bool = False
    failure: str | None = None


class DataLoaderDispatcher(DataLoader[Batch]):
    """A DataLoader that only rank 0 reads; each round travels to the others in one message.

    Collective: every rank must take part in each pass, from its start to its end.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        *,
        transport: Transport,
        rng_types: Iterable[str | RNGType] | None = None,
        hardware: Device | None = None,
        device: torch.device | str | None = None,
        clock: StepClock | None = None,
        non_blocking: bool = False,
        **loader_settings: Any,
    ) -> None:
        super().__init__(dataset, **loader_settings)
        batches: Any = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if split_batches:
            refuse_split(batches, getattr(batches, "batch_size", None), transport.size)
        # torch sets its own `drop_last` to False where it is given a batch sampler
        self._drop_last: bool = getattr(batches, "drop_last", self.drop_last)
        self.split_batches = split_batches
        self.device = device
        self.iteration = 0
        self.clock = clock or StepClock()
        self.rng_types = list(rng_types or ())
        self._hardware = hardware
        self._transport = transport
        self._non_blocking = non_blocking

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        move = mover(self.device, non_blocking=self._non_blocking)
        self.set_epoch(self.iteration)
        where = DataRank(self._transport.rank, self._transport.size)
        start: Any = None
        with self.clock.iterating(self) as epoch:
            try:
                for message in self._received():
                    if start is None:
                        start = message.data
                        self._synchronize()
                    epoch.last = message.last
                    batch, epoch.tail = part_of(message.data, start, where)
                    yield batch if move is None else move(batch)
            finally:
                self.iteration += 1

    def __len__(self) -> int:
        batches = super().__len__()
        if self.split_batches:
            return batches
        ending = Ending.DROP if self._drop_last else Ending.REPEAT
        return parts_in(batches, DataRank(0, self._transport.size), ending=ending)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for a sampler or dataset that has epochs."""
        self.iteration = epoch
        owners: tuple[Any, ...] = (self.batch_sampler, self.sampler, self.dataset)
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)

    def _synchronize(self) -> None:
        """Makes generators equal once rank 0 has drawn the order, which the others do not draw.

        Collective: every rank of the transport must call.
        """
        others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
        synchronize_rng_states(others, transport=self._transport, device=self._hardware)

    def _received(self) -> Iterator[Round]:
        """Collective: every rank of the transport must call."""
        if self._transport.rank == 0:
            yield from self._sent()
            return
        while True:
            message = self._transport.broadcast_object(Round(), 0)
            if message.failure is not None:
                raise PeerFailed(f"rank 0 could not read the next batch: {message.failure}")
            if message.data is None:
                return
            yield message
            if message.last:
                return

    def _sent(self) -> Iterator[Round]:
        ended = False
        try:
            for data, last in with_last(self._rounds()):
                message = Round(data, last)
                self._transport.broadcast_object(message, 0)
                ended = last
                yield message
        except GeneratorExit:  # the loop was left with `break`; on every rank alike
            raise
        except BaseException as error:
            if not ended:
                self._transport.broadcast_object(Round(failure=f"{type(error).__name__}: {error}"), 0)
            raise
        if not ended:
            self._transport.broadcast_object(Round(last=True), 0)

    def _rounds(self) -> Iterator[Any]:
        batches = super().__iter__()
        together = 1 if self.split_batches else self._transport.size
        while taken := list(islice(batches, together)):
            if len(taken) < together and self._drop_last:
                return
            yield joined(taken)


def joined(batches: list[Any]) -> Any:
    """The batches of a round as one.

    Raises: RuntimeError for batches that do not fit together, with what to do.
    """
    try:
        return concatenate(batches)
    except (RuntimeError, TypeError) as error:
        raise RuntimeError(
            f"one round of dispatch_batches=True joins {len(batches)} batches, and these do not fit together: {error}."
            " Use dispatch_batches=False, or split_batches=True, or a collate_fn that makes batches of one shape"
        ) from error


def part_of(data: Any, start: Any, where: DataRank) -> tuple[Any, Tail | None]:
    """One rank's equal part of a round, filled up from the first round where it does not divide; and what is real."""
    real = find_batch_size(data)
    rows = -(-real // where.of)
    tail = None
    if real < rows * where.of:
        tail = Tail(real=real, ranks=-(-real // rows), rows=rows)
        while (have := find_batch_size(data)) < rows * where.of:
            data = concatenate([data, slice_tensors(start, slice(0, rows * where.of - have))])
    return slice_tensors(data, slice(where.index * rows, (where.index + 1) * rows)), tail
