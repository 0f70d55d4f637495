"""Starts a job again after it has failed, as often as it was allowed since it got further."""

import time
from collections.abc import Callable

from accel_state.exits import STOPPED

from accel_launch.job import Job, run_job
from accel_launch.lifeline import adopt_orphans, end_orphans
from accel_launch.signals import Inbox
from accel_launch.supervise import Outcome
from accel_launch.verdict import explain

#: seconds before the first start again, and at most; twice as many each time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def run_until_done(job: Job, *, inbox: Callable[[], Inbox], say: Callable[[str], None]) -> Outcome:
    """Runs a job to its end, and says how each failure came; nothing that it started is left when it has failed.

    After a failure all processes are started again, up to `max_restarts` times without a new checkpoint in between. A
    job that somebody has ended, or that has stopped on request, is not.
    """
    others = adopt_orphans()
    attempt = failures = 0
    while True:
        failed = True
        try:
            outcome = run_job(job, inbox=inbox(), attempt=attempt)
            failed = outcome.code != 0
        finally:
            if failed:
                end_orphans(others)
        last_words = explain(outcome)
        if last_words is not None:
            say(last_words)
        failures = 1 if outcome.progressed else failures + 1
        over = outcome.first is None or outcome.outside is not None or outcome.first.status == STOPPED
        if over or failures > job.settings.max_restarts:
            if not over and job.settings.max_restarts:
                say(f"accel: gives up after {job.settings.max_restarts} starts without a new checkpoint")
            return outcome
        pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
        since = " since the last checkpoint" if outcome.progressed or attempt + 1 > failures else ""
        say(f"accel: starts again in {pause_s:g} s ({failures} of {job.settings.max_restarts} times{since})")
        time.sleep(pause_s)
        attempt += 1
