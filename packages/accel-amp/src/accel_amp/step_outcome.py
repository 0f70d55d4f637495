"""Whether a step was made, if a device finds that out."""

from __future__ import annotations

from typing import final

import torch


@final
class StepOutcome:
    """Whether a step was made; the host that asks waits for work that was begun before this object, and for no other.

    Its truth is that of a tensor on a device, of which a copy is under way to the host.
    """

    def __init__(self, made: torch.Tensor) -> None:
        self._made = made.to("cpu", non_blocking=True)
        self._copied = torch.accelerator.current_stream(made.device).record_event()

    def __bool__(self) -> bool:
        self._copied.synchronize()
        return bool(self._made)
