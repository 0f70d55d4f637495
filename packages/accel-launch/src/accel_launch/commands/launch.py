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

    from accel_launch.job import become, job_from
    from accel_launch.restarts import run_until_done
    from accel_launch.signals import command_line_inbox

    job = job_from(line, process_environ())
    if job.count == 1 and not job.settings.max_restarts:
        become(job)
    return run_until_done(job, inbox=command_line_inbox, say=_say).code


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
