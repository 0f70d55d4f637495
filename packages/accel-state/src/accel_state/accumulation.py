"""Count micro-batches: when the window of an optimizer step begins, steps, and is dropped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class BatchPadding:
    """The numbers of real samples in a batch in which ranks got repetitions, or different numbers of samples.

    Args:
        real: Samples of each rank without repetitions, which come first.
        served: All samples of each rank.
    """

    real: tuple[int, ...]
    served: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of samples of the job that are no repetitions."""
        return sum(self.real)


class LoaderPass(Protocol):
    """A pass over a loader, as windows and metrics see it."""

    #: the loader, or None once the pass is over
    loader: Any
    #: samples of a full batch of this rank, or None if batches vary
    rows: int | None
    #: whether the current batch is the last one
    last: bool
    #: the real samples of the current batch, or None if all samples of a full batch are real
    tail: BatchPadding | None

    def begin_micro_batch(self, *, active: bool) -> bool:
        """Note that a micro-batch begins, and return whether the data of the window ends with it.

        Args:
            active: Whether the newest batch is one of this pass.
        """

    def note_step(self) -> None:
        """Note that an optimizer step is due, which sees all batches until now."""


class PartialWindow(Enum):
    """The fate of a window of micro-batches that the last batch of a loader leaves short."""

    FLUSH = "flush"  # it ends there, with an optimizer step
    DROP = "drop"  # its gradients are thrown away
    CARRY = "carry"  # it goes on in the next epoch


class WindowListener(Protocol):
    """An object that an `AccumulationState` tells of its windows."""

    def begin_window(self, dropped: bool) -> None:
        """Begin a window: if the window before it was dropped, its gradients have to go."""


def _do_nothing(asked: Any, first: bool) -> None:
    """Do nothing before a batch."""


class AccumulationState:
    """The owner of the window of micro-batches: when it begins, when its step is due, and when it is dropped.

    Args:
        every: Micro-batches of an optimizer step.
        at_epoch_end: What happens to a window that the end of the data cuts short.
    """

    def __init__(self, every: int = 1, *, at_epoch_end: PartialWindow | str = PartialWindow.FLUSH) -> None:
        #: micro-batches of the window, the current one included; 0 before the first
        self.position = 0
        #: whether the script is in a micro-batch just now
        self.inside = False
        #: whether a loss came in the window, and whether it is thrown away
        self.has_loss = self.dropped = False
        self._over = self.due = True
        self.set_every(every)
        self.at_epoch_end = PartialWindow(at_epoch_end)
        #: optimizer steps that were due so far
        self.steps = 0
        #: the arguments that a plugin has set
        self.plugin_kwargs: dict[str, Any] = {}
        #: whether the data end on any rank, where those of ranks end apart: asked in each micro-batch, by all
        self.ends_anywhere: Callable[[bool], bool] | None = None
        #: called when a pass is asked for a batch, with whether it is the first one
        self.before_batch: Callable[[Any, bool], None] = _do_nothing
        self._passes: list[LoaderPass] = []
        self._listeners: list[weakref.ref[WindowListener]] = []

    # A property, or a name of an enum, costs a tiny step about a microsecond on CPython 3.11: what a micro-batch asks
    # for is a plain attribute.

    def set_every(self, steps: int) -> None:
        """Set the number of micro-batches of an optimizer step, from the next micro-batch on.

        Raises:
            ValueError: For anything but an integer of at least 1.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"gradient_accumulation_steps={steps!r}: expected a whole number of at least 1")
        #: micro-batches to an optimizer step
        self.every = steps
        #: whether each backward has its own step, and no window is anywhere
        self.alone = steps == 1 and not self.waiting and self.due

    def tell(self, listener: WindowListener) -> None:
        """Tell a listener of each window that begins, as long as somebody else holds the listener."""
        self._listeners[:] = [*(known for known in self._listeners if known() is not None), weakref.ref(listener)]

    def forget_listeners(self) -> None:
        """Forget all listeners."""
        self._listeners.clear()

    def _begin(self) -> None:
        dropped, self.dropped = self.dropped, False
        self.position, self.has_loss = 0, False
        for listening in self._listeners:
            if (listener := listening()) is not None:
                listener.begin_window(dropped)

    def tick(self) -> bool:
        """Begin a micro-batch, and return whether the optimizer step is due at its end."""
        if self._over:
            self._begin()
        self.position += 1
        self.inside, self.alone = True, False
        self.due = self._over = self.position >= self.every
        ends = bool(self._passes) and self._data_ends()
        if self.ends_anywhere is not None:
            ends = self.ends_anywhere(ends)
        if ends and not self.due:
            self.due = self.at_epoch_end is PartialWindow.FLUSH
            self._over = self.at_epoch_end is not PartialWindow.CARRY
            self.dropped = self._over and not self.due
        if self._over:
            self.steps += self.due
            for loader_pass in self._passes:
                loader_pass.note_step()
        return self.due

    def _data_ends(self) -> bool:
        """Tell all passes of a micro-batch, and return whether data ends with it."""
        active, ends = self._passes[-1], False
        for loader_pass in self._passes:
            ends = loader_pass.begin_micro_batch(active=loader_pass is active) or ends
        return ends

    def leave(self) -> None:
        """End a micro-batch.

        A step that follows is still the step that was due in it.
        """
        self.inside = False
        self.alone = self.every == 1 and self._over and self.due

    def abandon(self) -> None:
        """Drop the window of the current micro-batch: it failed, and no step may follow."""
        self._over, self.due, self.alone, self.dropped = True, False, False, True

    def begin_alone(self) -> None:
        """Begin a loss outside of micro-batches, which has its own step.

        A window of several micro-batches may wait to be continued.
        """
        if self.every == 1 and not self._over:
            self.abandon()
        if self._over:
            if self.dropped:
                self._begin()
            self.position = 0
            self.due = True
            self.alone = self.every == 1

    def reset(self) -> None:
        """Forget a window that has begun."""
        self.inside, self._over, self.dropped = False, True, False
        self.begin_alone()

    def __getstate__(self) -> dict[str, Any]:
        # A copy, which comes along with that of an optimizer, tells the copies only.
        return {**self.__dict__, "_listeners": [], "before_batch": _do_nothing}

    @property
    def waiting(self) -> bool:
        """True if a window has begun, and not ended."""
        return self.inside or not self._over

    @contextmanager
    def iterating(self, loader_pass: LoaderPass) -> Iterator[Sequence[LoaderPass]]:
        """Return a context in which a pass runs, which is the active one until a batch of another pass comes.

        Args:
            loader_pass: The pass that begins.

        Yields:
            All passes that run, the active one last, as this object goes on to keep them.
        """
        self.before_batch(loader_pass, True)
        self._passes.append(loader_pass)
        try:
            yield self._passes
        finally:
            # By identity: an outer pass may end before an inner one that was left with `break`.
            self._passes[:] = [other for other in self._passes if other is not loader_pass]

    def activate(self, loader_pass: LoaderPass) -> None:
        """Make a pass the active one: its batch comes, though other passes were begun since and left standing."""
        self._passes[:] = [*(other for other in self._passes if other is not loader_pass), loader_pass]

    @property
    def active(self) -> LoaderPass | None:
        """The innermost pass that has not ended."""
        return self._passes[-1] if self._passes else None

    # What follows are the names under which scripts know the same facts.

    @property
    def sync_gradients(self) -> bool:
        """True if the current micro-batch ends with an optimizer step."""
        return self.due

    @sync_gradients.setter
    def sync_gradients(self, due: bool) -> None:
        if self.waiting and due != self.due:
            raise ValueError(
                f"sync_gradients = {due}: it follows accumulate(), whose window is at micro-batch {self.position} of"
                f" {self.every}; set gradient_accumulation_steps, which may change at any time, or count micro-batches"
                " by hand with no_sync()"
            )
        self.due = due

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients

    @property
    def num_steps(self) -> int:
        """The number of micro-batches of an optimizer step."""
        return self.every

    @property
    def in_dataloader(self) -> bool:
        """True while a prepared loader is being iterated."""
        return bool(self._passes)

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being iterated, or None."""
        return self._passes[-1].loader if self._passes else None

    @property
    def end_of_dataloader(self) -> bool:
        """True if the current batch is the last batch of the active loader."""
        return bool(self._passes) and self._passes[-1].last

    @property
    def remainder(self) -> int:
        """The number of real samples of the job's current batch: 0 if all are real, -1 outside a loop."""
        if not self._passes:
            return -1
        tail = self._passes[-1].tail
        return tail.total if tail is not None else 0
