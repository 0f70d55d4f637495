"""What a step of the loop takes, by the clock of the host, which waits for no device."""

from __future__ import annotations

from time import perf_counter
from typing import Any, final


@final
class ThroughputMeter:
    """Measures the time from one call of `log` that names tokens to the next."""

    def __init__(self) -> None:
        self._data_wait_s = 0.0
        self._began: tuple[float, int | None] | None = None

    def restart(self) -> None:
        """Forgets the call before: the next call begins to measure."""
        self._began = None

    def waited(self, seconds: float) -> None:
        """Notes that the loop has waited for a batch.

        Units: seconds.
        """
        self._data_wait_s += seconds

    def measured(self, tokens: Any, step: int | None) -> dict[str, Any]:
        """What passed since the call before; {} for the first call. A call without a step counts as one step.

        Units: tokens per second, seconds per step.
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
