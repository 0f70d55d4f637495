"""Run `accel launch`, which starts a script on one or many processes."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions

if TYPE_CHECKING:
    from accel_launch.job.job import Job
    from accel_launch.report.job_result import JobResult

HELP = """Starts SCRIPT once for each accelerator, or on as many processes as you ask for. Everything after SCRIPT goes
to SCRIPT untouched."""
EPILOG = """Each long option may be written with dashes as well, as in --num-processes. A value is taken from the first
of these that has one: the option, its environment variable, the config file, the default. Options of accelerate launch
that ask for nothing else, such as --multi_gpu and --dynamo_backend no, are accepted.

\b
examples:
  # one process for each GPU, or one without GPUs
  accel launch train.py --lr 0.1
  # two processes on the CPU
  accel launch -n 2 --cpu train.py
  # one process for each of these two GPUs
  accel launch --gpu_ids 0,2 train.py
  # a module, as in python -m
  accel launch -n 4 -m my_package.train
  # a program that is not a Python file
  accel launch --no_python -n 2 ./run.sh
  # settings from a file
  accel launch --config_file two.yaml train.py

exit codes: that of the first process to fail; 128 + n if signal n killed it; 2 if nothing could be started."""


def run(options: ResolvedOptions, *, stays: bool = False) -> int:
    """Run the script and return its exit code. A single process takes the place of this process, unless it `stays`.

    Raises:
        CannotRun: Nothing was started. The error lists every reason.
    """
    from accel_launch.job.job import become, read_job
    from accel_launch.job.plan import words_of
    from accel_launch.supervise.output import say

    settings = options.settings
    if settings.submit is not None:
        from pathlib import Path

        from accel_launch.job.schedulers import load_scheduler

        load_scheduler(settings.submit).submit(options, cwd=Path.cwd(), say=say)
        return 0
    job = read_job(options)
    if settings.explain:
        from accel_launch.config.config_show import setting_lines
        from accel_launch.job.explain import what_was_found

        say("\n".join([*setting_lines(options, origins=True), *what_was_found(job)]))
    if settings.dry_run:
        from accel_launch.job.explain import what_would_start

        print("\n".join(what_would_start(job)), flush=True)
        return 0
    if settings.enable_cpu_affinity and (told := job.place) is not None:
        say(
            "accel: --enable_cpu_affinity has no effect: another launcher has started this process"
            f" ({words_of(told)}), and gives it its cores"
        )
    if job.alone and not stays:
        from accel_launch.job.job_runner import with_startup

        become(*job.processes(with_startup(job.environ) if settings.as_accelerate else job.environ, None))
    return run_to_end(job).code


def run_to_end(job: Job) -> JobResult:
    """Run a job to its end, and print on the standard error how each failure came.

    Raises:
        CannotRun: A process cannot be started, or machines do not meet.
    """
    from accel_launch.supervise.output import open_standard_streams, say

    open_standard_streams()
    # what was read and imported so far stays to the end: nothing is to look through it again, least of all at the exit
    gc.freeze()
    from accel_launch.memory.job_folder import run_with_memory

    return run_with_memory(job, _run, say)


def _run(job: Job) -> JobResult:
    """Run a job that has all that it needs to its end."""
    from accel_launch.supervise.output import say
    from accel_launch.supervise.signals import command_line_signals

    if job.node is not None:
        from accel_launch.nodes.run_on_node import run_on_node

        return run_on_node(job, job.node, command_line_signals(), say)
    from accel_launch.job.job_runner import run_job, run_until_done

    return run_until_done(
        lambda attempt: run_job(job, command_line_signals(), attempt=attempt), job.settings.max_restarts, say
    )


COMMAND = LaunchCommand(
    "launch",
    run,
    words="SCRIPT [arguments of the script]",
    help=HELP,
    epilog=EPILOG,
)
