"""Scales the loss so that float16 gradients do not vanish, and finds out which steps overflowed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from accel_state import StepClock
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


@final
class LossScaler:
    """torch's GradScaler for any number of optimizers.

    The scale changes between steps, not between two optimizers of one step: it is updated when the next loss is scaled,
    with a clock that of the next window, or when somebody asks for it and no optimizer waits for its step.
    """

    def __init__(self, device_type: str, *, clock: StepClock | None = None, **settings: Any) -> None:
        self._clock = clock or StepClock()
        self._stepped_in = -1
        self.grad_scaler = torch.amp.GradScaler(device_type, **settings)
        self._unscaled: set[int] = set()
        self._update_due = False
        self._stepping = False
        self._guarded: set[int] = set()
        self._guard: RemovableHandle | None = None

    def guard(self, parameters: Iterable[torch.Tensor]) -> None:
        """Lets no optimizer step with the scaled gradients of these parameters but through `step`."""
        self._guarded.update(map(id, parameters))
        if self._guard is None:
            self._guard = register_optimizer_step_pre_hook(_refuse_scaled(weakref.ref(self)))
            weakref.finalize(self, self._guard.remove)  # torch keeps the hook for every optimizer there is

    def release(self) -> None:
        """Forgets all parameters and optimizers: others may have their ids one day."""
        self._guarded.clear()
        self._unscaled.clear()
        self.grad_scaler._per_optimizer_states.clear()
        self._update_due = False
        if self._guard is not None:
            self._guard.remove()
            self._guard = None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss` times the current scale."""
        if self._clock.position == 0 or self._clock.windows != self._stepped_in:
            self._update()  # other optimizers of a window have gradients of its scale
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divides the optimizer's gradients by the scale, once a step however often it is called."""
        if id(optimizer) not in self._unscaled:
            self._unscaled.add(id(optimizer))
            self.grad_scaler.unscale_(optimizer)

    def discard(self, optimizer: Optimizer) -> None:
        """Forgets that the optimizer's gradients were unscaled: they are gone, and the step was not made."""
        if id(optimizer) in self._unscaled:
            self._update_due = True  # the only way to make GradScaler forget it too

    def step(self, optimizer: Optimizer, closure: Any = None) -> bool:
        """Steps the optimizer unless its gradients have an inf or nan; False when it was skipped."""
        if closure is not None:
            raise ValueError("fp16 cannot step with a closure: the loss inside it would not be scaled; use bf16 or no")
        stepped: list[bool] = []

        def note(stepper: Optimizer, *_: Any) -> None:
            # A fused optimizer is always called, with `found_inf` set on it for the while, and skips by itself.
            found_inf = getattr(stepper, "found_inf", None)
            stepped.append(found_inf is None or not found_inf.item())

        hook = optimizer.register_step_post_hook(note)
        self._stepping = True
        try:
            self.grad_scaler.step(optimizer)
        finally:
            self._stepping = False
            hook.remove()
        self._unscaled.discard(id(optimizer))
        self._update_due, self._stepped_in = True, self._clock.windows
        return any(stepped)

    def get_scale(self) -> float:
        """What the next loss will be multiplied by."""
        self._settle()
        return float(self.grad_scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """The scale, and how many steps it has held."""
        self._settle()
        return self.grad_scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state of `state_dict`."""
        self._update()  # the step before belongs to the state that goes
        self.grad_scaler.load_state_dict(state)

    def _settle(self) -> None:
        if not self._unscaled:
            self._update()

    def _update(self) -> None:
        if self._update_due:
            self._update_due = False
            self._unscaled.clear()
            self.grad_scaler.update()


def _refuse_scaled(scaler_of: weakref.ref[LossScaler]) -> Callable[..., None]:
    def refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        scaler = scaler_of()
        if scaler is None or scaler._stepping:
            return
        if any(id(one) in scaler._guarded for group in optimizer.param_groups for one in group["params"]):
            raise RuntimeError(
                f"this {type(optimizer).__name__} is not prepared, and would step with gradients that fp16 has"
                f" multiplied by {scaler.grad_scaler.get_scale():g}; pass it to accelerator.prepare and step with what"
                " that returns"
            )

    return refuse
