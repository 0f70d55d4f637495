"""Scales the loss so that float16 gradients do not vanish, and finds out which steps overflowed."""

from __future__ import annotations

from typing import Any, final

import torch
from accel_state import StepClock
from torch.optim import Optimizer


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
        #: whether an optimizer steps through here just now
        self.stepping = False

    def release(self) -> None:
        """Forgets all optimizers: others may have their ids one day."""
        self._unscaled.clear()
        self.grad_scaler._per_optimizer_states.clear()
        self._update_due = False

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
        if self.grad_scaler.is_enabled() and self.grad_scaler._scale is None:
            raise RuntimeError(
                f"this {type(optimizer).__name__} steps, and no loss was scaled for fp16: call"
                " accelerator.backward(loss), not loss.backward()"
            )
        stepped: list[bool] = []

        def note(stepper: Optimizer, *_: Any) -> None:
            # A fused optimizer is always called, with `found_inf` set on it for the while, and skips by itself.
            found_inf = getattr(stepper, "found_inf", None)
            stepped.append(found_inf is None or not found_inf.item())

        hook = optimizer.register_step_post_hook(note)
        self.stepping = True
        try:
            self.grad_scaler.step(optimizer)
        finally:
            self.stepping = False
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
