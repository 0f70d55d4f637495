"""Stand-ins for an optimizer and a schedule that DeepSpeed makes from its config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@final
class DummyOptim(Optimizer):
    """Stands for the optimizer of the section "optimizer"; `lr` and the others fill "auto" values there."""

    def __init__(self, params: Iterable[Any], lr: float = 0.001, weight_decay: float = 0.0, **kwargs: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **kwargs})

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # it cannot return a loss
        """Nothing.

        Raises: RuntimeError, as only DeepSpeed can step.
        """
        raise RuntimeError(
            "DummyOptim stands for the optimizer of DeepSpeed's config: prepare it by Accelerator(deepspeed_plugin=...)"
        )


@final
class DummyScheduler(LRScheduler):
    """Stands for the schedule of the section "scheduler", or that `lr_scheduler_callable` makes of the optimizer.

    `total_num_steps` and `warmup_num_steps` fill "auto" values there. DeepSpeed's engine steps the schedule.
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
        """The rates as they are."""
        return [group["lr"] for group in self.optimizer.param_groups]


@final
class EngineSchedule:
    """The schedule that an engine steps by itself: `step` of a prepared scheduler does nothing more."""

    def __init__(self, schedule: Any, optimizer: Optimizer) -> None:
        self.schedule = schedule
        self.optimizer = optimizer

    def step(self, *args: Any) -> None:
        """Nothing: the engine has stepped it."""

    def get_last_lr(self) -> list[Any]:
        """The learning rates last set, one for each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[Any]:
        """The learning rates that the schedule computes now, one for each group."""
        rates: list[Any] = self.schedule.get_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state dict."""
        state: dict[str, Any] = self.schedule.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads into the schedule."""
        self.schedule.load_state_dict(state)
