"""`accel test`: launches the check that package accel ships, by the same route as any script."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from accel_launch.arguments import split
from accel_launch.help_text import test_help

CHECK = "accel.check"


def run(tokens: Sequence[str]) -> int:
    """Runs the check and gives its exit code, after a line that tells of success if it is 0.

    Raises: CannotRun with every reason why nothing was started.
    """
    line = split(tokens)
    if line.help:
        print(test_help(), end="")
        return 0
    from accel_state.environ import process_environ
    from accel_state.errors import CannotRun

    from accel_launch.job import job_from, run_job, without_script
    from accel_launch.signals import command_line_inbox
    from accel_launch.verdict import explain

    stray = without_script(line, "accel test")
    if stray:
        raise CannotRun("accel test", [*line.problems, *stray])
    if find_spec("accel") is None:
        raise CannotRun(
            "accel test",
            [
                f"the check is module {CHECK} of package accel, which is not installed for {sys.executable};"
                " install package accel next to accel-launch"
            ],
        )
    job = job_from(split([*tokens, "--module", CHECK]), process_environ())
    outcome = run_job(job, inbox=command_line_inbox())
    last_words = explain(outcome)
    if last_words is not None:
        print(last_words, file=sys.stderr, flush=True)
        print(f"accel test: failed on {_processes(job.count)}", file=sys.stderr, flush=True)
        return outcome.code or 1
    print(f"accel test: success on {_processes(job.count)}; this machine is ready", flush=True)
    return 0


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
