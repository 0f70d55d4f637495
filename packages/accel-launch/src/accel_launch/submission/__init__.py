"""Hands a launch to a queue: writes the file of a job that runs `accel launch` there, and submits it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accel_state.errors import CannotRun

from accel_launch.arguments import CommandLine
from accel_launch.settings import LaunchSettings
from accel_launch.submission.kubernetes import Kubernetes
from accel_launch.submission.queue import Queue, Request, machines_of, options_of
from accel_launch.submission.sagemaker import SageMaker
from accel_launch.submission.slurm import Slurm
from accel_launch.submission.target import target_problem, write

QUEUES: dict[str, type[Queue]] = {"slurm": Slurm, "sagemaker": SageMaker, "kubernetes": Kubernetes}


def submit(
    line: CommandLine,
    settings: LaunchSettings,
    environ: Mapping[str, str],
    *,
    cwd: Path,
    say: Callable[[str], None],
    problems: Sequence[str] = (),
) -> int:
    """Writes the job for the queue of `settings.submit`, submits it where its client is installed, and gives 0.

    With --dry_run the job is written and printed, and not submitted. `problems` are what is known to be wrong already.

    Raises: CannotRun with every problem; then no file was written, unless it is the queue that has refused the job.
    """
    if problems and line.script is None:
        # After an option that nobody knows, nobody knows either what the script is.
        raise CannotRun(f"accel launch --submit {settings.submit}", problems)
    queue = QUEUES[str(settings.submit)]()
    options, wrong = options_of(settings)
    machines, differ = machines_of(settings, options, queue.machines_option)
    request = Request(line.script, line.arguments, settings, options, environ, cwd, machines)
    plan = queue.plan(request)
    path = cwd / (settings.submit_file or queue.default_file)
    taken = target_problem(path, queue.marker)
    found = [*problems, *wrong, *differ, *plan.problems, *([taken] if taken is not None else [])]
    if found:
        raise CannotRun(f"accel launch --submit {settings.submit}", found)
    write(path, plan.text)
    for note in plan.notes:
        say(f"accel: {note}")
    shown = settings.submit_file or queue.default_file
    say(f"accel: wrote {shown}")
    if settings.dry_run:
        print(plan.text, end="", flush=True)
        say(f"accel: nothing was submitted, since --dry_run was given; to submit it: {queue.command(shown)}")
        return 0
    missing = queue.missing(environ)
    if missing is not None:
        say(f"accel: {missing}, so nothing was submitted; where it is installed: {queue.command(shown)}")
        return 0
    say(f"accel: {queue.hand_over(path, environ)}")
    return 0
