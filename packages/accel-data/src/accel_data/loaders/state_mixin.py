"""Give a loader what scripts for Accelerate ask it for."""

from __future__ import annotations

from typing import Any

from accel_state import AccumulationState

from accel_data.resume.epochs import EpochTracker


class DataLoaderStateMixin:
    """A loader with the names that Accelerate has for its state, and a way back for scripts that skip by themselves."""

    accumulation: AccumulationState
    _epochs: EpochTracker

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":  # no property, as the class has no such attribute
            return self
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def end_of_dataloader(self) -> bool:
        """True if the current batch is the last one of the pass."""
        return self._epochs.at_last_batch

    @property
    def gradient_state(self) -> AccumulationState:
        """The window of micro-batches that the loader tells of its passes."""
        return self.accumulation

    def rewind(self) -> None:
        """Let the next pass begin the epoch of a loaded state at its start, in the same order.

        It is for scripts that skip by themselves what they were served before.
        """
        epochs = self._epochs
        if epochs.pending is not None and not epochs.pending.ended:
            epochs.pending, epochs.rewound = epochs.pending.at_start(), True
