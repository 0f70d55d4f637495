"""Reads everything a launch depends on, and refuses what cannot start with all reasons at once."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accel_state.errors import CannotRun

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import LaunchSettings
from accel_launch.job.plan import HostInfo, ProcessSpec, count_processes, plan_one, script_command
from accel_launch.job.script_check import script_problem
from accel_launch.job.visible_devices import visible_devices
from accel_launch.nodes.node_spec import NodeSpec, find_node


@dataclass(frozen=True, slots=True)
class Job:
    """A launch that nothing is known to stand against: `count` processes of one command on this machine.

    `node` is this machine among several, and `logs` the folder for what processes print.
    """

    settings: LaunchSettings
    command: tuple[str, ...]
    environ: Mapping[str, str]
    host: HostInfo
    count: int
    node: NodeSpec | None = None
    logs: Path | None = None

    @property
    def alone(self) -> bool:
        """Whether its one process needs nobody who watches it."""
        plain = self.logs is None and self.settings.tee == "3"
        return self.count == 1 and self.node is None and plain and not self.settings.max_restarts


def this_host(environ: Mapping[str, str]) -> HostInfo:
    """The cores that this process may use, and the accelerators that its children would see."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return HostInfo(cores, len(visible_devices(environ)), "lo0" if sys.platform == "darwin" else "lo")


def read_job(options: ResolvedOptions, *, cwd: Path, host: HostInfo, interpreter: str) -> Job:
    """The job that a command line, an environment and a config file ask for.

    Raises: CannotRun with every problem that was found.
    """
    settings, environ = options.settings, options.environ
    queue_only = [name for name in ("submit_options", "submit_file") if settings.is_flag(name)]
    needs = "needs --submit SCHEDULER: without it the job would run here"
    problems = [*options.problems, *(f"--{name} {needs}" for name in queue_only)]
    modes = {"module": settings.module, "no_python": settings.no_python}
    wrong = script_problem(options.script, **modes, cwd=cwd, environ=environ)
    problems += [wrong] if wrong is not None else []
    if settings.tee != "3" and settings.log_dir is None:
        problems.append(f"--tee {settings.tee} leaves out what is then nowhere: name a folder for it, --log_dir FOLDER")
    count, node = 1, None
    try:
        node = find_node(settings, environ, host)
        count = count_processes(settings, environ, host, machines=node.count if node is not None else 1)
    except CannotRun as error:
        problems += error.reasons
    if problems:
        raise CannotRun("accel launch", problems)
    command = script_command(options.script or "", options.arguments, settings=settings, interpreter=interpreter)
    logs = Path(settings.log_dir).absolute() / _name_of_now() if settings.log_dir is not None else None
    return Job(settings, command, environ, host, count, node, logs)


def _name_of_now() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.uname().nodename}-{os.getpid()}"


def become(job: Job) -> None:
    """Replaces this process by the one process of a job; returns never."""
    become_process(plan_one(job.settings, job.command, job.environ))


def become_process(spec: ProcessSpec) -> None:
    """Replaces this process by another one; returns never.

    Raises: CannotRun if it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these two, and what is ignored stays so in the next program.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(spec.command[0], spec.command, dict(spec.environ))
    except OSError as error:
        raise CannotRun("accel launch", [f"{spec.command[0]} could not be started: {error}"]) from error


def this_job(options: ResolvedOptions) -> Job:
    """The job for this machine, this interpreter and the working directory.

    Raises: CannotRun with every problem that was found.
    """
    return read_job(options, cwd=Path.cwd(), host=this_host(options.environ), interpreter=sys.executable)
