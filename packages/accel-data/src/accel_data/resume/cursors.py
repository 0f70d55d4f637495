"""Where a pass over a map-style dataset stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from accel_state import LoaderPass

from accel_data.resume.loader_state import LoaderState, ResumeError
from accel_data.sharding.batch_sampler_shard import BatchSamplerShard


@final
class MapCursor:
    """A pass over a map-style dataset; a place is the number of batches handed out."""

    def __init__(self, shard: BatchSamplerShard, state: LoaderState | None, skip: int) -> None:
        self._shard = shard
        self._state = state
        self._begun = skip * shard.round if state is None else state.consumed
        shard.start_at(self._begun)

    def begin(self) -> None:
        """Draws the order; torch has begun to read.

        Raises: ResumeError if the order is not the recorded one.
        """
        self._order, state = self._shard.newest(), self._state
        if state is None or state.digest is None:
            return
        if self._order.digest(state.consumed) != state.digest:
            raise ResumeError(
                f"the sampler does not repeat its order: the first {state.consumed} {state.unit} of epoch {state.epoch}"
                " are not those that were served. An order must follow from a `generator` attribute, from a global"
                " generator (torch, random, NumPy) read when the pass starts, from set_epoch, or from the sampler's own"
                " state_dict; and dataset, sampler and library versions must be the same"
            )

    def served(self, batches: Iterator[Any], epoch: LoaderPass) -> Iterator[Any]:
        """The batches of this rank; `epoch` is true of each before it is yielded."""
        order = self._order
        for at, batch in enumerate(batches, start=1):
            epoch.at = at
            if at == order.last:
                epoch.last, epoch.tail = True, order.tail
            yield batch

    def finish(self) -> None:
        """Returns at once: the order is drawn, whatever the script was served of it."""

    def entries(self, at: Any) -> dict[str, Any]:
        """What the loader's state says of the place `at`; None is the place where the pass began."""
        consumed = min(self._begun + (at or 0) * self._shard.round, self._order.end)
        return {"consumed": consumed, "digest": self._order.digest(consumed)}

    def ended(self) -> AbstractContextManager[None]:
        """In this block, at the last batch, generators stand where the end of the pass leaves them."""
        return self._order.ended()


@final
class UnreadCursor:
    """A pass that another rank reads; its methods are those of `MapCursor`."""

    def served(self, batches: Iterator[Any], epoch: LoaderPass) -> Iterator[Any]:
        """No batches."""
        return iter(())

    def finish(self) -> None:
        """Returns at once."""

    def entries(self, at: Any) -> dict[str, Any]:
        """Nothing: the rank that reads says it."""
        return {}

    def ended(self) -> AbstractContextManager[None]:
        """In this block generators stand where they do."""
        return nullcontext()
