"""`accel launch`: starts a script on one or many processes."""

import sys
from collections.abc import Sequence

from accel_launch.arguments import split
from accel_launch.help_text import launch_help


def run(tokens: Sequence[str]) -> int:
    """Runs the script and gives its exit code; one process takes the place of this one and nothing is given.

    Raises: CannotRun with every reason why nothing was started.
    """
    line = split(tokens)
    if line.help:
        print(launch_help(), end="")
        return 0
    from accel_state.environ import process_environ

    from accel_launch.job import become, job_from, run_job
    from accel_launch.lifeline import adopt_orphans, end_orphans
    from accel_launch.signals import command_line_inbox
    from accel_launch.verdict import explain

    job = job_from(line, process_environ())
    if job.count == 1:
        become(job)
    adopt_orphans()
    code = 1
    try:
        outcome = run_job(job, inbox=command_line_inbox())
        code = outcome.code
    finally:
        if code != 0:
            end_orphans()
    last_words = explain(outcome)
    if last_words is not None:
        print(last_words, file=sys.stderr, flush=True)
    return outcome.code
