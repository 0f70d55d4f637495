"""End a script's loops after a few steps: training loaders after the last step, the others after a few batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from accel_rehearse.allocations import BATCHES, Allocations
from accel_rehearse.nested_tensors import tensors_in
from accel_rehearse.refusal import frame_of_script
from accel_rehearse.training_loop import epochs_of

#: batches of a pass in which nothing is trained
EVALUATION_BATCHES = 2
#: the types of tokens
_IDS = (torch.int32, torch.int64)
#: seconds for passes over training loaders of a batch each, once all steps are made
FURTHER_S = 8.0


class RehearsalOver(BaseException):
    """The signal that a script has made its steps, and would go on for ever without further batches.

    It is no Exception, so that the handlers of a script do not catch it.
    """


class LoopBounds:
    """The end of loops.

    Args:
        allocations: What is told of batches.
    """

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations
        #: the loaders that are trained on, with the epochs of the loop around and the tokens of a sample
        self.training: dict[Any, tuple[int, int]] = {}
        #: the loaders of the passes that are under way, with the same
        self.passing: list[tuple[Any, int]] = []
        #: the tokens of a sample of the newest batch, or 0
        self.tokens = 0
        #: when further passes end, once all steps are made
        self.ends_at: float | None = None

    def bounded(self, iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        """Return the `__iter__` of prepared loaders whose passes end early."""

        def batches_of(loader: Any) -> Iterator[Any]:
            if self.ends_at and loader in self.training and time.monotonic() > self.ends_at:
                raise RehearsalOver
            self.passing.append(under_way := (loader, epochs_of(frame_of_script())))
            try:
                for served, batch in enumerate(iterate(loader)):
                    if served and (self.ends_at if loader in self.training else served >= EVALUATION_BATCHES):
                        return
                    self._allocations.note_all(batch, BATCHES)
                    ids = [one for one in tensors_in(batch) if one.ndim == 2 and one.dtype in _IDS]
                    self.tokens = max((one.shape[1] for one in ids), default=0)
                    yield batch
            finally:
                self.passing.remove(under_way)

        return batches_of


def length_or_none(loader: Any) -> int | None:
    """Return the number of batches of a loader, or None if it is not known, as of a stream."""
    with suppress(TypeError):
        return len(loader)
    return None
