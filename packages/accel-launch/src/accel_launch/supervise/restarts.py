"""Start a job again after it has failed, as often as it was allowed since its last checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from accel_state.exit_codes import STOPPED

from accel_launch.report.job_result import JobResult
from accel_launch.supervise.supervisor import UNREAD_S

#: seconds before the first start again, and at most; twice as many each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def run_until_done(
    run: Callable[[int], JobResult],
    max_restarts: int,
    say: Callable[[str], None],
    pause: Callable[[float], JobResult | None] = time.sleep,
) -> JobResult:
    """Run a job to its end, and report each failure.

    After a failure all processes are started again, up to `max_restarts` times without a new checkpoint in between. A
    job is not started again if a signal from outside ended it, if it stopped on request, or if it lost a machine for
    good.

    Args:
        run: Runs the job once, given the number of earlier starts.
        max_restarts: Number of restarts.
        say: Prints a line.
        pause: Lets seconds pass, and returns the result of the job if it ends meanwhile.

    Returns:
        The result of the last start.

    Raises:
        CannotRun: A process cannot be started.
    """
    attempt = failures = 0
    while True:
        result = run(attempt)
        tell(result, say)
        failures = 1 if result.progressed else failures + 1
        if result.code in (0, STOPPED) or result.by_somebody:
            return result
        if result.lost_machine or failures > max_restarts:
            if max_restarts:
                spent = f"after {max_restarts} restarts without a new checkpoint"
                say(f"accel: gives up {'as a machine is lost' if result.lost_machine else spent}")
            return result
        pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
        since = " since the last checkpoint" if result.progressed or attempt >= failures else ""
        say(f"accel: starts again in {pause_s:g} s ({failures} of {max_restarts} times{since})")
        ended = pause(pause_s)
        if ended is not None:
            tell(ended, say)
            return ended
        attempt += 1


def tell(result: JobResult, say: Callable[[str], None]) -> None:
    """Send the last words on a job to `say`, if it has not ended well."""
    from accel_launch.report.failure_report import explain

    last_words = None if result.well else explain(result)
    if last_words is None:
        return
    # a progress bar may have left its line unfinished, and whoever has ended the job may have stopped to read
    thread = threading.Thread(target=say, args=(f"\n{last_words}",), daemon=True)
    thread.start()
    thread.join(UNREAD_S if result.by_somebody else None)
