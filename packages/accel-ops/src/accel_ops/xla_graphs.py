"""Keeps the graphs that XLA collects small, and says once that batches change their shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accel_state import AccumulationState, Device

from accel_ops.tree import leaves


class XlaStepMarker:
    """What the batches of one loader, over all of its passes, mean to a device that compiles what a script does."""

    def __init__(self, accumulation: AccumulationState, cut: Callable[[], None] | None) -> None:
        self._accumulation = accumulation
        self._cut = cut
        self._first: dict[str, list[int]] | None = None
        self._said = False

    def mark_steps(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches as they are; the first that is shaped unlike the very first one is warned of.

        What was done with a batch is run before the next, unless gradients accumulate: a loop that evaluates would
        become one graph.
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
        """The first tensor whose shape is another one than before, with both shapes."""
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
    """What a loader whose batches go to `device` needs; None but on XLA."""
    if device is None or torch.device(device).type != "xla":
        return None
    return XlaStepMarker(accumulation, None if hardware is None else hardware.step_boundary)
