"""What goes with an Accelerator into a pickle or a copy: what it was asked for, has prepared, and its window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, LossScaler, UnpreparedGuard
from accel_state import AccumulationState
from accel_state.run_context import follow
from torch import nn
from torch.utils.data import DataLoader

from accel.build import Components
from accel.configuration import ProjectConfiguration
from accel.preparation import Preparer
from accel.settings import Settings


@dataclass(frozen=True)
class CopiedAccelerator:
    """An Accelerator without its processes, devices, threads and trackers: those of the process that reads it count."""

    settings: Settings
    project: ProjectConfiguration
    window: AccumulationState
    scaler: LossScaler | None
    models: list[nn.Module]
    optimizers: list[AcceleratedOptimizer]
    schedulers: list[AcceleratedScheduler]
    loaders: list[DataLoader[Any]]

    @classmethod
    def of(cls, settings: Settings, project: ProjectConfiguration, components: Components, preparer: Preparer) -> Self:
        """What is copied of these."""
        return cls(
            settings,
            project,
            components.accumulation,
            components.scaler,
            models=list(preparer.models),
            optimizers=list(preparer.optimizers),
            schedulers=list(preparer.schedulers),
            loaders=list(preparer.loaders),
        )

    def components(self, made: Components) -> Components:
        """The components of this process, with the window and the scale that prepared objects have with them."""
        follow(self.window)
        guard = UnpreparedGuard(self.window, self.scaler)
        return replace(made, accumulation=self.window, scaler=self.scaler, guard=guard)

    def hand_over(self, preparer: Preparer) -> None:
        """Lets the preparer know what was prepared."""
        for model in self.models:
            preparer.components.guard.watch(model.parameters())
        preparer.models += self.models
        preparer.optimizers += self.optimizers
        preparer.schedulers += self.schedulers
        preparer.loaders += self.loaders
