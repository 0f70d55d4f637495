"""A learning-rate scheduler that follows its optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_state import StepClock
from torch.optim.lr_scheduler import ReduceLROnPlateau

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
        clock: StepClock | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = [optimizers] if isinstance(optimizers, AcceleratedOptimizer) else list(optimizers)
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self.clock = clock or StepClock()
        self._advance = 1 if split_batches else num_processes
        self._always = not step_with_optimizer or isinstance(scheduler, ReduceLROnPlateau)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advances the schedule if its optimizers have stepped."""
        if self._always:
            self.scheduler.step(*args, **kwargs)
            return
        if not self.clock.due or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        total = getattr(self.scheduler, "total_steps", None)
        for _ in range(self._advance):
            # OneCycleLR counts its steps and refuses to go on: its end is the end.
            if total is None or self.scheduler._step_count <= total:
                self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The learning rates last set, one a group."""
        rates: list[Any] = self.scheduler.get_last_lr()
        return rates

    def get_lr(self) -> list[Any]:
        """The learning rates that the scheduler computes now, one a group."""
        rates: list[Any] = self.scheduler.get_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The inner scheduler's state dict."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads into the inner scheduler."""
        self.scheduler.load_state_dict(state_dict)
