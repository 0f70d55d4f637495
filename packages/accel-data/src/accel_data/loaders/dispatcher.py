"""A DataLoader that only rank 0 reads; the others receive their part of each round."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Self, TypeVar

import torch
from accel_ops import recursively_apply
from accel_state import Device, Epoch, PeerFailed, StepClock, Transport
from torch.utils.data import DataLoader

from accel_data.iterable.reader import cut_alike
from accel_data.loaders.device_prefetch import feed
from accel_data.loaders.dispatch_message import GlobalBatch, slices_of
from accel_data.loaders.loader import DataLoaderShard
from accel_data.resume.epochs import EpochTracker
from accel_data.resume.ledger import Ledger
from accel_data.resume.loader_state import LoaderState
from accel_data.rng import RNGType, synchronize_rng_states
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split, slices_in, with_last

Batch = TypeVar("Batch")


class DataLoaderDispatcher(DataLoader[Batch]):
    """A DataLoader that only rank 0 reads; each round travels to the others in one message.

    `reader` is the loader that rank 0 reads, prepared for one process.

    Collective: every rank must take part in each pass, from its start to its end.
    """

    def __init__(
        self,
        reader: DataLoaderShard[Batch],
        split_batches: bool = False,
        *,
        transport: Transport,
        ending: Ending = Ending.REPEAT,
        rng_types: Iterable[str | RNGType] | None = None,
        hardware: Device | None = None,
        device: torch.device | str | None = None,
        clock: StepClock | None = None,
        non_blocking: bool = False,
        ledger: Ledger | None = None,
        **loader_settings: Any,
    ) -> None:
        super().__init__(reader.dataset, **loader_settings)
        batches: Any = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if split_batches:
            refuse_split(batches, getattr(batches, "batch_size", None), transport.size)
        self.reader = reader
        self.split_batches = split_batches
        self.device = device
        self.clock = clock or StepClock()
        self.rng_types = list(rng_types or ())
        self._ending = ending
        self._hardware = hardware
        self._transport = transport
        self._non_blocking = non_blocking
        self._skip = 0
        self._epochs = EpochTracker(self.clock, ledger if transport.rank == 0 else None, transport.size)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override] # torch names a private class of its own
        self.set_epoch(self.iteration)
        forgotten = self._epochs.forgotten
        with self.clock.iterating(self, rows=self.rows) as epoch:
            rounds = self._sent(epoch) if self._transport.rank == 0 else self._received(epoch)
            try:
                skip, self._epochs.resume = 0 if self._epochs.resume is not None else self._skip, None
                wanted = islice(self._synchronized(rounds), skip, None)
                for batch in feed(wanted, epoch, self.device, non_blocking=self._non_blocking):
                    epoch.take_over()
                    epoch.came += 1
                    yield batch
            finally:
                rounds.close()
                if self._transport.rank > 0 and self._epochs.forgotten == forgotten:
                    self._epochs.iteration += 1  # rank 0 counts where it reads

    def __len__(self) -> int:
        batches = len(self.reader)
        if self.split_batches:
            return batches
        ending = Ending.DROP if self._ending is Ending.DROP else Ending.REPEAT
        return slices_in(batches, DataRank(0, self._transport.size), ending=ending)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass, for a sampler or dataset that has epochs."""
        self._epochs.iteration = epoch
        self.reader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, for the whole job, as `DataLoaderShard.state_dict`.

        Collective: every rank must call.
        """
        state: dict[str, Any] = {}
        if self._transport.rank == 0:
            state = self.reader.place(self._epochs, self.fresh()).as_dict()
        return self._transport.broadcast_object(state, 0)

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Lets the next pass continue where `state` was taken, as `DataLoaderShard.load_state_dict`.

        Collective: every rank must call, with the same state.
        """
        found = LoaderState.of(state, fresh=self.fresh(), strict=strict)
        cut_alike(self.reader.dataset, found)
        self._epochs.put_at(found)
        if self._transport.rank == 0:
            self.reader.load_state_dict(replace(found, step=self.reader.fresh().step).as_dict(), strict=False)
        self.set_epoch(found.epoch + found.ended)

    def without_first(self, batches: int) -> Self:
        """A loader whose passes are those of this one without its first `batches` batches; passes count for both."""
        twin = copy.copy(self)
        twin._skip = batches
        twin._iterator = None
        return twin

    @property
    def iteration(self) -> int:
        """The number of the next pass, or of the one that runs."""
        return self._epochs.iteration

    def fresh(self) -> LoaderState:
        """What a state of this loader holds whatever its place."""
        fresh = self.reader.fresh()
        return replace(fresh, step=fresh.step * self._together * self.clock.every)

    @property
    def rows(self) -> int | None:
        """Samples of a full batch of this rank; None when batches vary."""
        rows = self.reader.rows
        return rows // self._transport.size if rows is not None and self.split_batches else rows

    @property
    def _together(self) -> int:
        return 1 if self.split_batches else self._transport.size

    def _synchronized(self, rounds: Iterator[Any]) -> Iterator[Any]:
        """Makes generators equal once rank 0 has drawn the order, which the others do not draw.

        Collective: every rank of the transport must call.
        """
        others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
        for number, batch in enumerate(rounds):
            if number == 0:
                synchronize_rng_states(others, transport=self._transport, device=self._hardware)
            yield batch

    def _received(self, epoch: Epoch) -> Generator[Any]:
        """Collective: every rank of the transport must call."""
        while True:
            message = self._transport.broadcast_object(GlobalBatch(), 0)
            if message.failure is not None:
                raise PeerFailed(f"rank 0 could not read the next batch: {message.failure}")
            if message.parts is None:
                return
            epoch.last, epoch.tail = message.last, message.tail
            yield message.parts[self._transport.rank - 1]
            if message.last:
                return

    def _sent(self, epoch: Epoch) -> Generator[Any]:
        ended, start = False, None
        try:
            running, batches, resumed = self.reader.begin_pass()
            running.epoch = epoch
            self._epochs.open(running, self.fresh, resumed=resumed)
            try:
                place = Epoch(self)
                rounds = self._rounds(running.cursor.served(batches, place), place)
                for (taken, at), last in with_last(rounds):
                    start = start or _copied(taken)
                    parts, tail = slices_of(taken, start, self._transport.size, self._ending)
                    self._transport.broadcast_object(GlobalBatch(parts[1:], tail, last), 0)
                    ended = last
                    epoch.last, epoch.tail, epoch.at = last, tail, at
                    yield parts[0]
                running.ended = True
            finally:
                self._epochs.close(running, self.fresh)
        except GeneratorExit:  # the loop was left with `break`; on every rank alike
            raise
        except BaseException as error:
            if not ended:
                self._transport.broadcast_object(GlobalBatch(failure=f"{type(error).__name__}: {error}"), 0)
            raise
        if not ended:
            self._transport.broadcast_object(GlobalBatch(last=True), 0)

    def _rounds(self, batches: Iterator[Any], place: Epoch) -> Iterator[tuple[list[Any], Any]]:
        while taken := list(islice(batches, self._together)):
            if len(taken) < self._together and self._ending is Ending.DROP:
                return
            yield taken, place.at


def _copied(batches: list[Any]) -> list[Any]:
    """Copies, as the script may change what it was served."""
    return [recursively_apply(torch.clone, batch) for batch in batches]
