"""Let objects stand for an optimizer and a schedule that DeepSpeed makes from its config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@final
class DummyOptim(Optimizer):
    """A stand-in for the optimizer of the section "optimizer" in DeepSpeed's config.

    Args:
        params: Parameters to train.
        lr: Value for "auto" there.
        weight_decay: Value for "auto" there.
        kwargs: Other values for "auto" there.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.001, weight_decay: float = 0.0, **kwargs: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **kwargs})

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # it cannot return a loss
        """Raise, as only DeepSpeed can step.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "DummyOptim stands for the optimizer of DeepSpeed's config: prepare it by Accelerator(deepspeed_plugin=...)"
        )


@final
class DummyScheduler(LRScheduler):
    """A stand-in for a schedule, which DeepSpeed's engine steps.

    Args:
        optimizer: Optimizer whose learning rate is scheduled.
        total_num_steps: Value for "auto" in the section "scheduler".
        warmup_num_steps: Value for "auto" there.
        lr_scheduler_callable: Makes the schedule of the optimizer, in place of the section.
        kwargs: Other values for "auto" there.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Optimizer], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Return the learning rates as they are."""
        return [group["lr"] for group in self.optimizer.param_groups]


@final
class EngineSchedule:
    """A schedule that an engine steps by itself: `step` of a prepared scheduler does nothing more."""

    def __init__(self, schedule: Any, optimizer: Optimizer) -> None:
        self.schedule = schedule
        self.optimizer = optimizer

    def step(self, *args: Any) -> None:
        """Do nothing: the engine has stepped the schedule."""

    def get_last_lr(self) -> list[Any]:
        """Return the current learning rate of each parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[Any]:
        """Return the learning rates that the schedule computes now, one for each group."""
        rates: list[Any] = self.schedule.get_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state dict."""
        state: dict[str, Any] = self.schedule.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state dict into the schedule."""
        self.schedule.load_state_dict(state)
