"""The part of an Accelerator that goes into a pickle or a copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from accel_amp import LossScaler, UnpreparedGuard
from accel_state import AccumulationState
from accel_state.run_context import follow

from accel.build import Components
from accel.configuration import ProjectConfiguration
from accel.preparation import Preparer
from accel.settings import Settings


@dataclass(frozen=True)
class AcceleratorPickle:
    """An Accelerator without its processes, devices, threads and trackers: it gets those of the process that reads it.

    Args:
        settings: What it was asked for.
        project: Its folders.
        window: Its window of micro-batches.
        scaler: Its loss scaler, or None.
        ready: The prepared objects, as its preparer lists them.
    """

    settings: Settings
    project: ProjectConfiguration
    window: AccumulationState
    scaler: LossScaler | None
    ready: tuple[list[Any], ...]

    @classmethod
    def of(cls, project: ProjectConfiguration, preparer: Preparer) -> Self:
        """Return what is pickled of an Accelerator.

        Args:
            project: Its folders.
            preparer: What it has prepared, from what settings.
        """
        components = preparer.components
        return cls(preparer.settings, project, components.accumulation, components.scaler, preparer.ready)

    def components(self, made: Components) -> Components:
        """Return the components of this process, with the window and the scale that prepared objects have with them."""
        follow(self.window)
        guard = UnpreparedGuard(self.window, self.scaler)
        return replace(made, accumulation=self.window, scaler=self.scaler, guard=guard)

    def hand_over(self, preparer: Preparer) -> None:
        """Tell a preparer what was prepared."""
        for known, ready in zip(preparer.ready, self.ready, strict=True):
            known += ready
        for model in preparer.models:
            preparer.components.guard.watch(model.parameters())
