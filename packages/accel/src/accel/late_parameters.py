"""Parameters that come to prepared optimizers later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accel_amp import AcceleratedOptimizer
from accel_parallel import divide_loaded_state, refuse_replaced
from torch import nn

from accel.build import Components
from accel.settings import Settings


class LateParameters:
    """Refuses parameters that would not train, and makes others equal on all processes."""

    def __init__(self, components: Components, settings: Settings, models: Sequence[nn.Module]) -> None:
        self._components, self._settings, self._models = components, settings, models

    def attach(self, optimizer: AcceleratedOptimizer, *, replaced: bool) -> None:
        """Looks after an optimizer; `replaced` says that prepared models have other parameters than before.

        Collective: every process must call.
        """
        strategy = self._components.strategy
        optimizer.before_group = self.meet
        if strategy.shards and strategy.engine is None:
            divide_loaded_state(optimizer.optimizer)
        optimizer.state_of = None if strategy.engine is None else strategy.engine.state_of(optimizer.optimizer)
        optimizer.unproven = strategy.engine is None and (replaced or strategy.shards)
        self.adopt([held for group in optimizer.optimizer.param_groups for held in group["params"]])

    def meet(self, parameters: Sequence[torch.Tensor]) -> None:
        """Looks at the parameters of a group before an optimizer gets it.

        Raises: ValueError for parameters that would not train.
        Collective: every process must call.
        """
        engine, place = self._components.engine, self._components.run.placed_on
        if engine is not None and "add_param_group" in engine.refusals:
            raise ValueError(f"add_param_group: {engine.refusals['add_param_group']}")
        if self._settings.device_placement:
            refuse_replaced(parameters, self._models, place)
        self.adopt(parameters)

    def adopt(self, parameters: Sequence[torch.Tensor]) -> None:
        """Makes parameters equal that no exchange of prepared models covers. Collective: every process must call."""
        missed = self._components.strategy.missed
        if missed is not None and self._models:
            missed.adopt(self._models, parameters)
