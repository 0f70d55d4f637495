"""A DataLoader that only rank 0 reads; the others receive their part of each round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import torch
from accel_ops import recursively_apply
from accel_ops.rng import RNGType, synchronize_rng_states
from accel_state import LoaderPass, PeerFailed, Transport

from accel_data.loaders.dispatch_message import GlobalBatch, slices_of
from accel_data.loaders.loader import DataLoaderShard
from accel_data.resume.cursors import Cursor
from accel_data.resume.epochs import EpochRun
from accel_data.resume.loader_state import LoaderState
from accel_data.sharding.rank_slices import DataRank, Ending, refuse_split, slices_in, with_last

Batch = TypeVar("Batch")


class DataLoaderDispatcher(DataLoaderShard[Batch]):
    """A DataLoader that only rank 0 reads, as one process would; each round travels to the others in one message.

    Collective: every rank must take part in each pass, from its start to its end.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        *,
        transport: Transport,
        ending: Ending = Ending.REPEAT,
        **settings: Any,
    ) -> None:
        super().__init__(dataset, where=DataRank(transport.rank, transport.size), ending=ending, **settings)
        if split_batches:
            refuse_split(self._source, self._source.rows, transport.size)
        self.split_batches = split_batches
        self._ending = ending
        self._ranks = transport
        self._together = 1 if split_batches else transport.size

    def __len__(self) -> int:
        if self.split_batches:
            return super().__len__()
        ending = Ending.DROP if self._ending is Ending.DROP else Ending.REPEAT
        return slices_in(super().__len__(), DataRank(0, self._ranks.size), ending=ending)

    def state_dict(self) -> dict[str, Any]:
        """As `DataLoaderShard.state_dict`, by rank 0.

        Collective: every rank must call.
        """
        if self._ranks.rank > 0:
            state, *_ = self._heard("say where it stands").parts or [{}]
            return dict(state)
        with self._failures_told():
            state = super().state_dict()
        self._broadcast(GlobalBatch([state]))
        return state

    def fresh(self) -> LoaderState:
        """What a state of this loader holds whatever its place."""
        fresh = super().fresh()
        return replace(fresh, step=fresh.step * self._together)

    @property
    def rows(self) -> int | None:
        """Samples of a full batch of this rank; None when batches vary."""
        rows = super().rows
        return rows // self._ranks.size if rows is not None and self.split_batches else rows

    def _begin_pass(self) -> tuple[EpochRun, Iterator[Any], bool]:
        """As `DataLoaderShard._begin_pass`; only rank 0 draws and reads."""
        if self._ranks.rank == 0:
            with self._failures_told():
                return super()._begin_pass()
        resumed = self._epochs.take_pending() is not None
        self.set_epoch(self.iteration)
        running = EpochRun(self.iteration, Cursor(), LoaderPass(self), {}, None)
        self._epochs.open(running, self.fresh, resumed=resumed)
        return running, iter(()), resumed

    def _served(self, running: EpochRun, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        """Collective: every rank of the transport must call, and take each batch."""
        rounds = self._sent(running, batches) if self._ranks.rank == 0 else self._received(running.epoch)
        return islice(self._synchronized(rounds), skip if self._reader is not None else 0, None)

    def _synchronized(self, rounds: Iterator[Any]) -> Iterator[Any]:
        """Makes generators equal once rank 0 has drawn the order, which the others do not draw.

        Collective: every rank of the transport must call.
        """
        others = [kind for kind in self.rng_types if kind != RNGType.GENERATOR]
        for number, batch in enumerate(rounds):
            if number == 0:
                synchronize_rng_states(others, transport=self._ranks, device=self._hardware)
            yield batch

    def _received(self, epoch: LoaderPass) -> Iterator[Any]:
        """Collective: every rank of the transport must call."""
        while True:
            message = self._heard("read the next batch")
            if message.parts is None:
                return
            epoch.last, epoch.tail = message.last, message.tail
            yield message.parts[self._ranks.rank - 1]
            if message.last:
                return

    def _heard(self, what: str) -> GlobalBatch:
        """What rank 0 says.

        Raises: PeerFailed if it could not do `what`.
        """
        message = self._broadcast(GlobalBatch())
        if message.failure is not None:
            raise PeerFailed(f"rank 0 could not {what}: {message.failure}")
        return message

    def _sent(self, running: EpochRun, batches: Iterator[Any]) -> Iterator[Any]:
        epoch, place = running.epoch, LoaderPass(self)
        start, last = None, False
        with self._failures_told():
            for (taken, at), last in with_last(self._rounds(running.cursor.served(batches, place), place)):
                start = start or [recursively_apply(torch.clone, batch) for batch in taken]  # a script may change it
                parts, tail = slices_of(taken, start, self._ranks.size, self._ending)
                self._broadcast(GlobalBatch(parts[1:], tail, last))
                epoch.last, epoch.tail, epoch.at = last, tail, at
                yield parts[0]
            if not last:
                self._broadcast(GlobalBatch(last=True))

    def _broadcast(self, message: GlobalBatch) -> GlobalBatch:
        plain: Any = tuple(message)  # is pickled in half the time
        return GlobalBatch(*self._ranks.broadcast_object(plain, 0))

    def _rounds(self, batches: Iterator[Any], place: LoaderPass) -> Iterator[tuple[list[Any], Any]]:
        while taken := list(islice(batches, self._together)):
            if len(taken) < self._together and self._ending is Ending.DROP:
                return
            yield taken, place.at

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Tells the others what fails in this block, which they would wait for."""
        try:
            yield
        except GeneratorExit:  # the loop was left with `break`; on every rank alike
            raise
        except BaseException as error:
            self._broadcast(GlobalBatch(failure=f"{type(error).__name__}: {error}"))
            raise
