"""Keep the graphs that XLA collects small, and warn once if batches change their shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accel_state import AccumulationState, Device

from accel_ops.tree import leaves


class XlaStepMarker:
    """An observer of the batches of one loader, over all of its passes, for a device that compiles graphs.

    Args:
        accumulation: The window of micro-batches of the script.
        cut: Function that runs the operations collected so far, or None if the device has none.
    """

    def __init__(self, accumulation: AccumulationState, cut: Callable[[], None] | None) -> None:
        self._accumulation = accumulation
        self._cut = cut
        self._first: dict[str, list[int]] | None = None
        self._said = False

    def mark_steps(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, and run the collected operations on each before the next one comes.

        While gradients accumulate, nothing is run. Without this, a loop that evaluates would become one graph. The
        first batch with other shapes than the very first one causes a warning.
        """
        for batch in batches:
            if not self._said and (change := self._change(batch)) is not None:
                self._said = True
                warnings.warn(
                    f"batches on XLA change their shapes: {change}. Each new shape is compiled anew, which takes"
                    " seconds to minutes; pad to one length, and leave no short batch at the end (drop_last=True)",
                    stacklevel=4,  # the script's own loop
                )
            yield batch
            if self._cut is not None and self._accumulation.due:
                self._cut()

    def _change(self, batch: Any) -> str | None:
        """Return the first tensor whose shape has changed, with both shapes, or None."""
        shapes = {path: list(leaf.shape) for path, leaf in leaves(batch) if isinstance(leaf, torch.Tensor)}
        if self._first is None:
            self._first = shapes
        for path in self._first | shapes:
            before, now = self._first.get(path, "not there"), shapes.get(path, "not there")
            if before != now:
                return f"batch{path} was {before} and is {now}"
        return None


def step_marker_of(
    device: torch.device | str | None, accumulation: AccumulationState, hardware: Device | None
) -> XlaStepMarker | None:
    """Return the step marker of a loader on XLA, and None on other devices.

    Args:
        device: Where the batches of the loader go.
        accumulation: The window of micro-batches of the script.
        hardware: The device that knows where a graph may be cut.
    """
    if device is None or torch.device(device).type != "xla":
        return None
    return XlaStepMarker(accumulation, None if hardware is None else hardware.step_boundary)
