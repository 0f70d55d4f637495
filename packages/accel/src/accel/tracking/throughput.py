"""The time that a step of the loop takes, by the clock of the host, which waits for no device."""

from __future__ import annotations

from time import perf_counter
from typing import Any, final


@final
class ThroughputMeter:
    """The clock between one call of `log` that names tokens and the next."""

    def __init__(self) -> None:
        self._data_wait_s = 0.0
        self._began: tuple[float, int | None] | None = None

    def restart(self) -> None:
        """Forget the call before: the next call begins to measure."""
        self._began = None

    def waited(self, seconds: float) -> None:
        """Note that the loop has waited for a batch.

        Units:
            seconds: seconds.
        """
        self._data_wait_s += seconds

    def measured(self, tokens: Any, step: int | None) -> dict[str, Any]:
        """Return what has passed since the call before, or {} for the first call.

        Args:
            tokens: How many tokens all processes have trained on since.
            step: The number of the step; a call without it counts as one step.

        Units:
            Tokens per second, seconds per step.
        """
        now, before = perf_counter(), self._began
        data_wait_s, self._data_wait_s = self._data_wait_s, 0.0
        self._began = now, step
        if before is None or now <= before[0]:
            return {}
        seconds = now - before[0]
        steps = 1 if step is None or before[1] is None else max(step - before[1], 1)
        return {
            "tokens_per_second": tokens / seconds,
            "step_time_s": seconds / steps,
            "data_wait_s": data_wait_s / steps,
        }
