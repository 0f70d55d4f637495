"""Whether an optimizer steps with the parameters that it has in its groups."""

from __future__ import annotations

from typing import final

import torch
from torch.optim import Optimizer

from accel_amp.local_part import local_part


@final
class FirstStep:
    """What tells, before the first step of an optimizer, if that step changes the parameters that have gradients.

    Versions tell so, but not of fused steps; sums of the numbers do, but not at a rate of 0; and so does a state.
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
        """Whether there are parameters that the step has to change."""
        return bool(self._held)

    def check(self) -> None:
        """Refuses an optimizer whose step has left them all.

        Raises: RuntimeError.
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
    # XLA has no fused steps, and to read a number there would cut the graph of the step
    return 0.0 if part.device.type == "xla" else part.double().sum().item()
