"""How batches that rank 0 reads become those of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, final

import torch
from accel_ops import recursively_apply
from accel_ops.rng import RNGType, synchronize_rng_states
from accel_state import Device, LoaderPass, PeerFailed, Transport

from accel_data.loaders.dispatch_message import GlobalBatch, slices_of
from accel_data.resume.epochs import Cursor
from accel_data.sharding.rank_slices import DataRank, Ending, slices_in, with_last

T = TypeVar("T")


@final
class Dispatch:
    """Rank 0 reads, as one process would; each round travels to the others in one message.

    `together` batches that it reads make one round. Generators of `rng_types` are made equal in each pass.

    Collective: every rank of the transport must call `begun`, `told` and `served`, and take each batch.
    """

    def __init__(
        self,
        transport: Transport,
        together: int,
        ending: Ending,
        rng_types: Iterable[str | RNGType],
        hardware: Device | None,
    ) -> None:
        self.together, self.ranks = together, transport.size
        self._transport = transport
        self._ending = ending
        self._rng_types = [kind for kind in rng_types if kind != RNGType.GENERATOR]
        self._hardware = hardware

    def length(self, batches: int) -> int:
        """Batches of a rank, of so many that are read."""
        ending = Ending.DROP if self._ending is Ending.DROP else Ending.REPEAT
        return slices_in(batches, DataRank(0, self.together), ending=ending)

    def begun(self, begin: Callable[[], T]) -> T | None:
        """What `begin` returns on rank 0; None on the others.

        Raises: PeerFailed on the others if it fails.
        """
        if self._transport.rank > 0:
            self._heard("begin the pass")
            return None
        with self._failures_told():
            begun = begin()
        self._broadcast(GlobalBatch())
        return begun

    def told(self, state: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The state that the loader has on rank 0.

        Raises: PeerFailed on the others if rank 0 cannot take it.
        """
        if self._transport.rank > 0:
            heard, *_ = self._heard("say where it stands").parts or [{}]
            return dict(heard)
        with self._failures_told():
            taken = state()
        self._broadcast(GlobalBatch([taken]))
        return taken

    def served(self, cursor: Cursor, batches: Iterator[Any], epoch: LoaderPass) -> Iterator[Any]:
        """The batches of this rank; `epoch` is true of each before it is yielded."""
        rounds = self._received(epoch) if self._transport.rank > 0 else self._sent(cursor, batches, epoch)
        for batch in islice(rounds, 1):
            # rank 0 has drawn the order by now, and the others have not
            synchronize_rng_states(self._rng_types, transport=self._transport, device=self._hardware)
            yield batch
        yield from rounds

    def _received(self, epoch: LoaderPass) -> Iterator[Any]:
        """Collective: every rank of the transport must call."""
        while True:
            message = self._heard("read the next batch")
            if message.parts is None:
                return
            epoch.last, epoch.tail = message.last, message.tail
            yield message.parts[self._transport.rank - 1]
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

    def _sent(self, cursor: Cursor, batches: Iterator[Any], epoch: LoaderPass) -> Iterator[Any]:
        ahead, start, last = LoaderPass(None), None, False
        with self._failures_told():
            for (taken, at), last in with_last(self._rounds(cursor.served(batches, ahead), ahead)):
                start = start or [recursively_apply(torch.clone, batch) for batch in taken]  # a script may change it
                parts, tail = slices_of(taken, start, self.ranks, self._ending)
                self._broadcast(GlobalBatch(parts[1:], tail, last))
                epoch.last, epoch.tail, epoch.at = last, tail, at
                yield parts[0]
            if not last:
                self._broadcast(GlobalBatch(last=True))

    def _broadcast(self, message: GlobalBatch) -> GlobalBatch:
        plain: Any = tuple(message)  # is pickled in half the time
        return GlobalBatch(*self._transport.broadcast_object(plain, 0))

    def _rounds(self, batches: Iterator[Any], ahead: LoaderPass) -> Iterator[tuple[list[Any], Any]]:
        while taken := list(islice(batches, self.together)):
            if len(taken) < self.together and self._ending is Ending.DROP:
                return
            yield taken, ahead.at

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
