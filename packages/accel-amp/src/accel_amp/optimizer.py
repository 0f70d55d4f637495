"""The prepared optimizer, which steps if a step is due."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
from accel_state import AccumulationState
from torch.optim import Optimizer

from accel_amp.first_step import FirstStep
from accel_amp.step_outcome import StepOutcome

logger = logging.getLogger("accel")


class StepMaker(Protocol):
    """An object that makes the steps of optimizers, because it knows how their gradients are scaled."""

    def register(self, optimizer: Optimizer) -> None:
        """Note an optimizer before its first step."""

    def step(self, optimizer: Optimizer, closure: Any = None) -> bool | torch.Tensor:
        """Step the optimizer.

        Args:
            optimizer: The optimizer to step.
            closure: The closure that the script has passed, if any.

        Returns:
            False if gradients had overflowed and the step was skipped, and otherwise True. It may be a tensor on the
            device.
        """

    def discard(self, optimizer: Optimizer) -> bool:
        """Forget gradients that had no step.

        Returns:
            True if they are cleared by now, and False if the caller has to clear them.
        """


class AcceleratedOptimizer(Optimizer):
    """A prepared optimizer, whose `step` does nothing in the middle of an accumulation window.

    Its `zero_grad` does nothing there either, wherever in the loop it is called. It clears gradients after their step,
    or if their window was dropped. In fp16 a step whose gradients overflowed is skipped, and `step_was_skipped` is
    true. State, groups and defaults are those of the inner optimizer, `optimizer`.

    Args:
        optimizer: The optimizer to wrap.
        device_placement: Move the state of the optimizer to the devices of its parameters.
        scaler: Object that makes the steps, for fp16; without it the optimizer steps by itself.
        accumulation: The window of micro-batches of the script.
        step_boundary: Function to call after each step, such as the one that ends a graph on XLA.
        unproven: Whether the first step has yet to show that it changes parameters, as after others were put in their
            places.

    Raises:
        TypeError: `optimizer` is no torch optimizer, or is prepared already.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        device_placement: bool = True,
        scaler: StepMaker | None = None,
        *,
        accumulation: AccumulationState | None = None,
        step_boundary: Callable[[], None] | None = None,
        unproven: bool = False,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"only a torch.optim.Optimizer can be prepared, found a {type(optimizer).__name__}")
        if isinstance(optimizer, AcceleratedOptimizer):
            raise TypeError("this optimizer is prepared already; prepare it once")
        # Optimizer.__init__ would build groups and state of its own: everything is the inner optimizer's.
        self.optimizer = optimizer
        self.scaler = scaler
        self.accumulation = accumulation or AccumulationState()
        # whether the newest step was made, and how many were; tensors as long as nobody has asked
        self._made: bool | torch.Tensor | StepOutcome = True
        self._steps: int | torch.Tensor = 0
        # what schedulers do once it is known whether the newest step was made
        self._postponed: list[Callable[[], None]] = []
        #: number of steps that are over, made or skipped, which is the same on all ranks
        self.ended = 0
        #: called when a step that was due is over, made or skipped
        self.on_step: Callable[[AcceleratedOptimizer], None] | None = None
        #: called with the parameters of a group before it is added
        self.before_group: Callable[[list[torch.Tensor]], None] | None = None
        #: the object that saves and loads the state instead of the inner optimizer
        self.state_of: Any = None
        self._unproven = unproven
        # whether the gradients have had their step; and whether they were to be cleared without one
        self._spent, self._given_up = False, False
        self._warned = False
        #: number of the window of its newest step
        self.stepped_at = 0
        self._boundary = step_boundary
        self.accumulation.tell(self)
        if scaler is not None:
            scaler.register(optimizer)
        if device_placement and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # puts each entry beside its parameter

    def __getattr__(self, name: str) -> Any:
        # What is not here is the inner optimizer's: its hooks, and attributes of the user's own.
        if name == "optimizer":  # not set yet, while unpickling
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def state(self) -> Any:
        """The state of the inner optimizer."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizer, with the learning rates that schedulers have set so far."""
        self.settle()
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the inner optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def step_was_skipped(self) -> bool:
        """True if the newest step that was due was skipped.

        With a fused optimizer in fp16, reading this waits for the device.
        """
        self._made = bool(self._made)
        return not self._made

    @step_was_skipped.setter
    def step_was_skipped(self, skipped: bool) -> None:
        self._made = not skipped

    _is_overflow = step_was_skipped

    @property
    def outcome(self) -> bool | StepOutcome:
        """True if the newest step that was due was made, perhaps as an object that finds out when it is asked.

        With a fused optimizer in fp16 it is a `StepOutcome`, and only `bool` of that waits for the device.
        """
        if isinstance(self._made, torch.Tensor):
            self._made = bool(self._made) if self._made.device.type == "cpu" else StepOutcome(self._made)
        return self._made

    @property
    def saved(self) -> Any:
        """The object that has the state whole: the inner optimizer, unless a strategy spreads its state."""
        return self.optimizer if self.state_of is None else self.state_of

    def postpone(self, advance: Callable[[], None]) -> None:
        """Postpone a call until the next step, or until somebody asks for the groups or the state.

        Args:
            advance: The function to call once; if it is postponed already, nothing happens.
        """
        if advance not in self._postponed:
            self._postponed.append(advance)

    def settle(self) -> None:
        """Call the functions that were postponed."""
        while self._postponed:
            self._postponed.pop(0)()

    @property
    def steps(self) -> int:
        """The number of steps that were made.

        With a fused optimizer in fp16, reading this waits for the device.
        """
        self._steps = int(self._steps)
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer.

        Args:
            param_group: The parameters under "params", and their settings.

        Collective:
            Every process must call, with parameters of the same shapes. Parameters of no prepared model get the values
            of the main process.
        """
        given = param_group["params"]
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        if self.before_group is not None:
            self.before_group([one[1] if isinstance(one, tuple) else one for one in listed])
        self.optimizer.add_param_group({**param_group, "params": listed})

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the inner optimizer."""
        self.settle()
        state: dict[str, Any] = self.saved.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the inner optimizer, which moves each entry to the device of its parameter."""
        self.settle()
        self.saved.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        """Step the inner optimizer if a step is due.

        Args:
            closure: Function that computes the loss again, as in torch.

        Returns:
            The loss that the inner optimizer returns, if it made the step itself, and otherwise None.

        Raises:
            ValueError: A closure comes with accumulation, or in fp16. It would not see the other micro-batches, or not
                be scaled.
            RuntimeError: torch cannot do the step with sharded parameters, the optimizer has lost its parameters, or no
                loss was scaled for fp16.
        """
        if closure is not None and self.accumulation.every > 1:
            raise ValueError(
                f"step(closure) with gradient_accumulation_steps={self.accumulation.every}: a closure computes the"
                " loss of one micro-batch; compute that of all of them in it, and set the number to 1"
            )
        accumulation = self.accumulation
        if not accumulation.due:
            return None
        if accumulation.inside and not accumulation.has_loss:
            self._warn_of_no_loss()
        if self._postponed:
            self.settle()
        first = FirstStep(self.optimizer) if self._unproven else None
        loss = None
        try:
            if self.scaler is not None:
                self._made = made = self.scaler.step(self.optimizer, closure)
            else:
                made, loss = True, self.optimizer.step() if closure is None else self.optimizer.step(closure)
        except RuntimeError as error:
            if any(words in str(error) for words in ("Sharding propagation failed", "a number of a sharded tensor")):
                raise RuntimeError(
                    f"torch cannot do the step of {type(self.optimizer).__name__} with sharded parameters (the error"
                    " above says why); use another optimizer, or strategy='ddp'"
                ) from error
            raise
        if first is not None and first.tells and made:
            self._unproven = False
            first.check()
        self._steps = self._steps + made
        self._spent, self._given_up = True, False
        self.ended += 1
        self.stepped_at = accumulation.steps
        if self._boundary is not None:
            self._boundary()
        if self.on_step is not None:
            self.on_step(self)
        return loss

    def _warn_of_no_loss(self) -> None:
        if not self._warned and self.accumulation.every > 1:
            self._warned = True
            logger.warning(
                "%s steps, and no loss of its window went through accelerator.backward(loss), which divides by the"
                " micro-batches; was loss.backward() left in?",
                type(self.optimizer).__name__,
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients unless their window has not had its step.

        Args:
            set_to_none: Set gradients to None, and not to zero.
        """
        if self._spent:
            self._clear(set_to_none)
            return
        accumulation = self.accumulation
        alone = accumulation.every == 1 or not accumulation.waiting  # no window, or nobody counts its micro-batches
        if (accumulation.due and alone) or accumulation.dropped:
            self._clear(set_to_none)
        elif accumulation.due:
            # unless a step follows: this may stand before the last backward, or in place of a step
            self._given_up = True

    def begin_window(self, dropped: bool) -> None:
        """Clear gradients that `zero_grad` was to clear in the last window, or that were dropped with it.

        Args:
            dropped: Whether the last window was dropped.
        """
        if self._given_up or dropped:
            self._clear()

    def _clear(self, set_to_none: bool = True) -> None:
        self._spent, self._given_up = False, False
        if self.scaler is None or not self.scaler.discard(self.optimizer):
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def discard_gradients(self) -> None:
        """Clear the gradients, whatever window they belong to."""
        self._made = True
        self._clear()

    def train(self) -> None:
        """Switch a schedule-free optimizer to training, and leave other optimizers as they are."""
        self._mode("train")

    def eval(self) -> None:
        """Switch a schedule-free optimizer to evaluation, and leave other optimizers as they are."""
        self._mode("eval")

    def _mode(self, name: str) -> None:
        mode = getattr(self.optimizer, name, None)
        if callable(mode):
            mode()

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        self._made = bool(self._made)
        # A scheduler puts a `step` into its optimizer that is bound to this very one: a copy has to go without.
        kept = {name: value for name, value in self.__dict__.items() if name != "step"}
        return kept | {"before_group": None, "state_of": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.accumulation.tell(self)

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"
