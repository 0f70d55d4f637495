"""Turn batches that rank 0 reads into those of each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, final

import torch
from accel_comm import PeerFailed, Transport
from accel_ops import process_rng, recursively_apply
from accel_ops.rng import RNGType, synchronize_rng_states
from accel_ops.scatter import Scatter
from accel_state import Device
from accel_state.devices.cpu import Cpu

from accel_data.loaders.dispatch_message import BatchNote, slices_of
from accel_data.plan import LoaderPlan
from accel_data.resume.epoch_pass import EpochPass
from accel_data.resume.epochs import Cursor
from accel_data.sharding.rank_slices import DataRank, Ending, slices_in, with_last

T = TypeVar("T")


@final
class Dispatch:
    """The exchange of batches that rank 0 reads, as one process would, and sends in parts to all ranks.

    Args:
        plan: The plan of the loader.
        transport: Transport of the ranks that share the data.
        rng_types: Generators to make equal on all ranks in each epoch.
        hardware: Device of this process.
        device: Device from which rank 0 sends parts that do not fit into a message, if the transport can exchange its
            tensors.

    Collective:
        Every rank of the transport must call `on_zero` and `served`, and take each batch.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        transport: Transport,
        rng_types: Iterable[str | RNGType],
        hardware: Device | None,
        device: torch.device | str | None,
    ) -> None:
        self._batches, self._split = plan.batches_per_round, plan.split_batches
        self._transport = transport
        self._reads = transport.world.rank == 0
        self._ending = plan.ending
        self._rng_types = [kind for kind in rng_types if kind != RNGType.GENERATOR]
        self._hardware = hardware
        self._device = device

    def length(self, batches: int) -> int:
        """Return the number of batches of a rank.

        Args:
            batches: Number of batches that rank 0 reads.
        """
        ending = Ending.DROP if self._ending is Ending.DROP else Ending.REPEAT
        return slices_in(batches, DataRank(0, self._batches), ending=ending)

    def on_zero(self, act: Callable[[], T], what: str, told: Callable[[T], T | None] = lambda done: None) -> Any:
        """Call a function on rank 0, and return its result there, and what the others are told of it.

        Args:
            act: Function to call.
            what: Words for what it does.
            told: Function that returns what the other ranks are told of the result.

        Raises:
            PeerFailed: The function failed on rank 0; raised on the other ranks.
        """
        if not self._reads:
            return _heard(what, *self._transport.broadcast_object((None, None), 0))
        with _failures_told(lambda failure: self._transport.broadcast_object((failure, None), 0)):
            done = act()
        self._transport.broadcast_object((None, told(done)), 0)
        return done

    def served(self, cursor: Cursor, batches: Iterator[Any], epoch: EpochPass) -> Iterator[Any]:
        """Yield the batches of this rank, and note each in `epoch` before.

        Args:
            cursor: The cursor of the epoch.
            batches: The batches of torch on rank 0.
            epoch: The record of the epoch, which is changed.
        """
        scatter = Scatter("dispatch (from rank 0)", self._transport.world, device=self._device)
        rounds = self._sent(scatter, cursor, batches, epoch) if self._reads else self._received(scatter, epoch)
        for batch in islice(rounds, 1):
            # rank 0 has drawn the order by now, and the others have not
            synchronize_rng_states(self._rng_types, transport=self._transport, device=self._hardware)
            yield batch
        yield from rounds

    def _received(self, scatter: Scatter, epoch: EpochPass) -> Iterator[Any]:
        """Yield the parts that rank 0 sends (collective)."""
        last = False
        while not last:
            part, note = scatter.receive()
            tail, last, ended, failure, generators = note or BatchNote()
            _heard("read the next batch", failure)
            if ended:
                return
            epoch.last, epoch.tail = last, tail
            if self._transport.rank == 0 and generators is not None:
                process_rng.restore(generators, self._hardware or Cpu())
            yield part

    def _sent(self, scatter: Scatter, cursor: Cursor, batches: Iterator[Any], epoch: EpochPass) -> Iterator[Any]:
        copies = self._transport.replicas
        ahead, start, last, nothing = EpochPass(None), None, False, [()] * self._transport.size * copies
        with _failures_told(lambda failure: scatter.send(nothing, BatchNote(failure=failure))):
            for (taken, at), last in with_last(self._rounds(cursor.served(batches, ahead), ahead)):
                start = start or [recursively_apply(torch.clone, batch) for batch in taken]  # a script may change it
                parts, tail = slices_of(taken, start, self._transport.size, self._ending, split=self._split)
                note = BatchNote(tail, last) if last or tail is not None else None
                if copies > 1:
                    note = BatchNote(tail, last, generators=process_rng.capture(self._hardware or Cpu()))
                scatter.send([part for part in parts for _ in range(copies)], note)
                epoch.last, epoch.tail, epoch.at = last, tail, at
                yield parts[0]
            if not last:
                scatter.send(nothing, BatchNote(ended=True))

    def _rounds(self, batches: Iterator[Any], ahead: EpochPass) -> Iterator[tuple[list[Any], Any]]:
        while taken := list(islice(batches, self._batches)):
            if len(taken) < self._batches and self._ending is Ending.DROP:
                return
            yield taken, ahead.at


def _heard(what: str, failure: str | None, value: Any = None) -> Any:
    if failure is not None:
        raise PeerFailed(f"rank 0 could not {what}: {failure}")
    return value


@contextmanager
def _failures_told(tell: Callable[[str], Any]) -> Iterator[None]:
    """Send a failure in this block to the other ranks, which would wait otherwise."""
    try:
        yield
    except GeneratorExit:  # the loop was left with `break`; on every rank alike
        raise
    except BaseException as error:
        tell(f"{type(error).__name__}: {error}")
        raise
