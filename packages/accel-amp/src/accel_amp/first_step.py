"""Check that the first step of an optimizer changes the parameters in its groups."""

from __future__ import annotations

from typing import final

import torch
from torch.optim import Optimizer

from accel_amp.local_part import local_part


@final
class FirstStep:
    """A check, made before the first step of an optimizer, of the parameters that have gradients.

    A parameter has changed if its version has, or the sum of its values, or if the optimizer has a state of it.
    Versions miss fused steps, and sums say nothing at a learning rate of 0.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        groups = optimizer.param_groups
        self._held = [
            one for group in groups if group.get("lr") != 0 for one in group["params"] if one.grad is not None
        ]
        self._looks = self._look()

    @property
    def tells(self) -> bool:
        """True if there are parameters that the step has to change."""
        return bool(self._held)

    def check(self) -> None:
        """Raise if the step has changed none of the parameters.

        Raises:
            RuntimeError: The optimizer holds parameters that prepare has replaced.
        """
        if self._look() != self._looks or any(one in self._optimizer.state for one in self._held):
            return
        raise RuntimeError(
            f"the first step of this {type(self._optimizer).__name__} has changed none of the parameters that have"
            " gradients: it holds those that prepare has replaced, where prepare did not find them. Make the optimizer"
            " from the parameters of the prepared model, and prepare it then"
        )

    @torch.no_grad()
    def _look(self) -> list[tuple[int, int, float]]:
        # a step may work on either of the two tensors of a sharded parameter
        parts = [(one, getattr(one, "_local_tensor", one)) for one in self._held]
        return [(one._version, part._version, _sum(local_part(one))) for one, part in parts]


def _sum(part: torch.Tensor) -> float:
    # XLA has no fused steps, and to read a value there would cut the graph of the step
    return 0.0 if part.device.type == "xla" else part.double().sum().item()
