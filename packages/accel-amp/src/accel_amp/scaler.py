"""Scale the loss so that float16 gradients do not vanish, and find out which steps overflowed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch.optim import Optimizer

from accel_amp.optimizer_parameters import parameters_of
from accel_amp.partial_grad_scaler import PartialGradScaler


@final
class LossScaler:
    """A GradScaler for any number of optimizers.

    The scale changes when the next loss is scaled, or when somebody asks for it. It does not change while an optimizer
    has scaled gradients without a step: those of a window, or of a step that several optimizers make in turn.

    Args:
        device_type: Type of the device of the gradients, such as "cuda".
        spread: Function that sets a tensor to its maximum over all ranks, if each rank holds a part of the gradients.
        **settings: Settings of `torch.amp.GradScaler`, such as `init_scale`.
    """

    def __init__(
        self, device_type: str, *, spread: Callable[[torch.Tensor], None] | None = None, **settings: Any
    ) -> None:
        scaler = torch.amp.GradScaler if spread is None else PartialGradScaler
        self.grad_scaler = scaler(device_type, **settings)
        # sets a value to the largest of all ranks, if each holds a part of the gradients
        self._spread = spread
        #: whether an optimizer steps through here just now
        self.stepping = False
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._unscaled: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._update_due = False
        # those that have stepped since a loss was scaled
        self._just_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # optimizers with gradients that nobody seems to step with: they hold the scale no longer
        self._idle: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def register(self, optimizer: Optimizer) -> None:
        """Let the gradients of an optimizer hold the scale until it has stepped with them."""
        self._known.add(optimizer)
        self.grad_scaler._per_optimizer_states.pop(id(optimizer), None)  # of one that had this id before

    def release(self) -> None:
        """Forget all optimizers."""
        self._update_due = False
        for known in (self._known, self._unscaled, self._stepped, self._idle, self._just_stepped):
            known.clear()
        self.grad_scaler._per_optimizer_states.clear()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss` times the current scale."""
        self._settle()
        self._just_stepped.clear()
        return self.grad_scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, once for each step."""
        if optimizer not in self._unscaled:
            self._again(optimizer)
            self._unscaled.add(optimizer)
            self.grad_scaler.unscale_(optimizer)
            if self._spread is not None:
                overflow = self.grad_scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
                for found_inf in overflow.values():
                    self._spread(found_inf)

    def share_overflow(self, optimizers: Sequence[Optimizer]) -> None:
        """Skip the steps of unscaled optimizers together, if the gradients of any of them overflowed.

        It is needed if one norm has mixed their gradients.
        """
        states = self.grad_scaler._per_optimizer_states
        known = [states[id(optimizer)]["found_inf_per_device"] for optimizer in optimizers if id(optimizer) in states]
        found = [number for devices in known for number in devices.values()]
        if len(known) < 2 or not found:
            return
        worst = found[0]
        for number in found[1:]:
            worst = torch.maximum(worst, number.to(worst.device, non_blocking=True))
        for number in found:
            number.copy_(worst, non_blocking=True)

    def discard(self, optimizer: Optimizer) -> bool:
        """Forget that the gradients of an optimizer were unscaled, as there was no step.

        Returns:
            False, as the caller has to clear the gradients.
        """
        if optimizer in self._unscaled:
            self._unscaled.discard(optimizer)
            self.grad_scaler._per_optimizer_states.pop(id(optimizer), None)
        return False

    def step(self, optimizer: Optimizer, closure: Any = None) -> bool | torch.Tensor:
        """Step the optimizer unless its gradients have an inf or nan.

        Args:
            optimizer: The optimizer to step.
            closure: None, as fp16 has no closures.

        Returns:
            False if the step was skipped, and otherwise True. With a fused optimizer it is a tensor beside the
            gradients, and reading that waits for the device.

        Raises:
            ValueError: There is a closure, whose loss would not be scaled.
            RuntimeError: No loss was scaled before.
        """
        if closure is not None:
            raise ValueError("fp16 cannot step with a closure: the loss inside it would not be scaled; use bf16 or no")
        if self.grad_scaler.is_enabled() and self.grad_scaler._scale is None:
            raise RuntimeError(
                f"this {type(optimizer).__name__} steps, and no loss was scaled for fp16: call"
                " accelerator.backward(loss), not loss.backward()"
            )
        if self._spread is not None:
            self.unscale(optimizer)
        elif optimizer not in self._unscaled:
            self._again(optimizer)
        stepped: list[bool | torch.Tensor] = []

        def note(stepper: Optimizer, *_: Any) -> None:
            # A fused optimizer is always called, with `found_inf` set on it for the while, and skips by itself.
            found_inf = getattr(stepper, "found_inf", None)
            stepped.append(True if found_inf is None else found_inf == 0)

        hook = optimizer.register_step_post_hook(note)
        self.stepping = True
        try:
            self.grad_scaler.step(optimizer)
        finally:
            self.stepping = False
            hook.remove()
        self._unscaled.discard(optimizer)
        self._idle.discard(optimizer)
        self._stepped.add(optimizer)
        self._just_stepped.add(optimizer)
        self._update_due = True
        return stepped[0] if stepped else False

    def unscaled(self, number: torch.Tensor) -> torch.Tensor:
        """Divide a value that follows from scaled gradients by their scale, without waiting for the device.

        Args:
            number: A value that is proportional to the gradients, such as their norm.
        """
        self._settle()
        scale = self.grad_scaler._get_scale_async()
        return number / (self.grad_scaler.get_scale() if scale is None else scale.to(number.device, non_blocking=True))

    def get_scale(self) -> float:
        """Return the factor of the next loss, unless gradients hold the scale."""
        self._settle()
        return float(self.grad_scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and how many steps it has held."""
        self._settle()
        return self.grad_scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        if self._update_due:
            self._update()  # the step before belongs to the state that goes
        self.grad_scaler.load_state_dict(state)

    def _again(self, optimizer: Optimizer) -> None:
        """Let an optimizer step once more with the scale that others hold."""
        if optimizer not in self._stepped or optimizer in self._just_stepped:
            return
        self._idle.update(self._holding())
        states = self.grad_scaler._per_optimizer_states
        overflow = states[id(optimizer)]["found_inf_per_device"]
        if any(found.item() for found in overflow.values()):
            states[~id(optimizer)] = {**states[id(optimizer)]}  # it counts when the scale changes
        del states[id(optimizer)]
        self._stepped.discard(optimizer)

    def _settle(self) -> None:
        if not self._update_due:
            return
        for one in [one for one in self._unscaled if not _has_gradients(one)]:
            self.discard(one)
        if not self._unscaled and not self._holding():
            self._update()

    def _holding(self) -> list[Optimizer]:
        """Return the optimizers with gradients that were scaled and have had no step."""
        done = self._stepped | self._idle
        return [one for one in self._known if one not in done and _has_gradients(one)]

    def _update(self) -> None:
        self._update_due = False
        self._stepped.clear()
        self._unscaled.clear()
        self.grad_scaler.update()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(one.grad is not None for one in parameters_of(optimizer))
