"""The prepared learning-rate scheduler, which follows its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accel_state import AccumulationState
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from accel_amp.optimizer import AcceleratedOptimizer
from accel_amp.step_outcome import StepOutcome


class AcceleratedScheduler:
    """A prepared scheduler, whose `step` does nothing while gradients accumulate or after a skipped step.

    Otherwise `step` advances the schedule `num_processes` times, because a schedule made before `prepare` counts the
    batches of the unsharded loader. With `split_batches` it advances once. ReduceLROnPlateau counts evaluations, so
    each call is one step.

    With a fused optimizer in fp16, only the device knows if a step was made. The schedule then advances before the next
    step of the optimizer, or when somebody asks for its rates.

    Args:
        scheduler: The scheduler to wrap.
        optimizers: The prepared optimizers whose steps it follows.
        step_with_optimizer: Follow the optimizers; False advances once with each call.
        split_batches: Whether loaders split each batch between processes.
        num_processes: Number of processes that share the data.
        accumulation: The window of micro-batches of the script.
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
        self._scheduler = scheduler
        self._postponed: Callable[[], None] | None = None
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
        """Advance the schedule if its optimizers have stepped.

        Args:
            *args: Arguments of the inner scheduler, such as the metric of ReduceLROnPlateau.
            **kwargs: Keyword arguments of the inner scheduler.
        """
        if self._always:
            self._scheduler.step(*args, **kwargs)
            return
        if not self.accumulation.due:
            return
        if self._postponed is not None:
            self.settle()
        for optimizer in self.optimizers:
            if optimizer.outcome is not True:
                self._advance_if_all_step(args, kwargs)
                return
        self._advance_now(args, kwargs)

    def settle(self) -> None:
        """Advance the schedule if a step was made of which only the device knew, and wait for the device."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            postponed()

    @property
    def scheduler(self) -> Any:
        """The scheduler that was prepared."""
        self.settle()
        return self._scheduler

    def _advance_if_all_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Advance the schedule once it is known that all its optimizers have stepped."""
        unknown: list[StepOutcome] = []
        for optimizer in self.optimizers:
            outcome = optimizer.outcome
            if outcome is False:
                return
            if outcome is not True:
                unknown.append(outcome)
        self._postponed = partial(self._advance_if, unknown, args, kwargs)
        for optimizer in self.optimizers:
            optimizer.postpone(self.settle)

    def _advance_if(self, outcomes: Sequence[StepOutcome], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if all(outcomes):
            self._advance_now(args, kwargs)

    def _advance_now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._once:
            self._scheduler.step(*args, **kwargs)
            return
        for _ in range(self._advance):
            # OneCycleLR counts its steps and then raises an error: here it stays at its last rate. Torch would take one
            # step more, to a rate beyond the curve.
            if self._total is None or self._scheduler._step_count < self._total:
                self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates last set, one for each group."""
        rates: list[Any] = self.scheduler.get_last_lr()
        return rates

    def get_lr(self) -> list[Any]:
        """Return the learning rates that the scheduler computes now, one for each group."""
        rates: list[Any] = self.scheduler.get_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the inner scheduler."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the inner scheduler."""
        self.scheduler.load_state_dict(state_dict)
        if self._total is not None:
            self._total = self.scheduler.total_steps

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return self.__dict__
