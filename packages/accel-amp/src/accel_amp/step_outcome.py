"""The outcome of a step that only a device knows yet."""

from __future__ import annotations

from typing import final

import torch


@final
class StepOutcome:
    """The outcome of a step, which is true if the step was made.

    `bool` waits for the copy of a tensor from the device, and so for work that was begun before this object, but not
    for later work.

    Args:
        made: Tensor on the device, true if the step was made.
    """

    def __init__(self, made: torch.Tensor) -> None:
        self._made = made.to("cpu", non_blocking=True)
        self._copied = torch.accelerator.current_stream(made.device).record_event()

    def __bool__(self) -> bool:
        self._copied.synchronize()
        return bool(self._made)
