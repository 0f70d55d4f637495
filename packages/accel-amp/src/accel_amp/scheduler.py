"""A learning-rate scheduler that follows its optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_state import AccumulationState
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from accel_amp.optimizer import AcceleratedOptimizer


class AcceleratedScheduler:
    """A scheduler whose `step` does nothing while gradients accumulate, or after a step that was skipped.

    Otherwise it advances `num_processes` times, because a schedule made before `prepare` counts the batches of the
    unsharded loader; with `split_batches` it advances once. With `step_with_optimizer=False` each call is one step, and
    so it is for ReduceLROnPlateau, which counts evaluations and not batches.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: AcceleratedOptimizer | Sequence[AcceleratedOptimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        num_processes: int = 1,
        accumulation: AccumulationState | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = [optimizers] if isinstance(optimizers, AcceleratedOptimizer) else list(optimizers)
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self.accumulation = accumulation or AccumulationState()
        self._advance = 1 if split_batches else num_processes
        #: the number of all its steps, if it has one
        self._total: int | None = scheduler.total_steps if isinstance(scheduler, OneCycleLR) else None
        self._once = self._advance == 1 and self._total is None
        self._always = not step_with_optimizer or isinstance(scheduler, ReduceLROnPlateau)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advances the schedule if its optimizers have stepped."""
        if not self._always:
            if not self.accumulation.due:
                return
            for optimizer in self.optimizers:
                if optimizer.step_was_skipped:
                    return
            if not self._once:
                self._advance_by(self._advance, args, kwargs)
                return
        self.scheduler.step(*args, **kwargs)

    def _advance_by(self, steps: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for _ in range(steps):
            # OneCycleLR counts its steps and then raises an error: here it stays at its last rate. Torch would take one
            # step more, to a rate beyond the curve.
            if self._total is None or self.scheduler._step_count < self._total:
                self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The learning rates last set, one for each group."""
        rates: list[Any] = self.scheduler.get_last_lr()
        return rates

    def get_lr(self) -> list[Any]:
        """The learning rates that the scheduler computes now, one for each group."""
        rates: list[Any] = self.scheduler.get_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The inner scheduler's state dict."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads into the inner scheduler."""
        self.scheduler.load_state_dict(state_dict)
        if self._total is not None:
            self._total = self.scheduler.total_steps
