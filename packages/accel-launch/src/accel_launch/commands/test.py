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

    from accel_launch.job import job_from, without_script
    from accel_launch.restarts import run_until_done
    from accel_launch.signals import command_line_inbox
    from accel_launch.streams import open_standard_streams

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
    if job.place is not None and job.place.rank is None:
        raise CannotRun("accel test", ["accel test meets at given ranks: give --machine_rank on each machine"])
    open_standard_streams()
    outcome = run_until_done(job, inbox=command_line_inbox, say=_say)
    count = job.count * (job.place.count if job.place is not None else 1)
    if outcome.code:
        _say(f"accel test: failed on {_processes(count)}")
        return outcome.code
    print(f"accel test: success on {_processes(count)}; this machine is ready", flush=True)
    return 0


def _say(words: str) -> None:
    from accel_launch.screen import write
    from accel_launch.streams import ERR

    # not by sys.stderr: where nobody listens any more, that would end this process with a code of its own
    write(ERR, f"{words}\n".encode(errors="backslashreplace"))


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
