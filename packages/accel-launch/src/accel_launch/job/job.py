"""Read all that a launch depends on, and refuse a job that cannot start with all reasons at once."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from accel_state.environ import MEMORY_CHECKPOINTS
from accel_state.errors import CannotRun

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.options import LaunchSettings
from accel_launch.config.option_entries import sharding_problems
from accel_launch.job.plan import (
    HostInfo,
    ProcessSpec,
    RendezvousInfo,
    count_processes,
    place_told,
    plan_many,
    plan_one,
)
from accel_launch.job.script_check import script_problem
from accel_launch.job.visible_devices import visible_devices
from accel_launch.nodes.node_spec import NodeSpec, find_node


@dataclass(frozen=True, slots=True)
class Job:
    """A launch without known problems.

    Args:
        settings: Settings of the launch.
        command: Program and arguments of each process.
        environ: Environment of the launcher.
        host: This machine.
        count: Number of processes on this machine.
        node: This machine among several; None if the job has one machine.
        logs: Folder for the output of processes.
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
        """True for a single process, which needs no supervision."""
        watched = self.settings.max_restarts or self.settings.memory_checkpoint_every
        return self.count == 1 and self.node is None and self.logs is None and not watched

    @property
    def place(self) -> Mapping[str, str] | None:
        """The variables by which another launcher gave this process its rank, or None."""
        return place_told(self.environ) if self.node is None else None

    def processes(self, environ: Mapping[str, str], meeting: RendezvousInfo | None) -> list[ProcessSpec]:
        """Return the processes of this machine.

        Args:
            environ: Environment to start them from.
            meeting: Rendezvous of the processes; None if there is one process.
        """
        if meeting is None:
            specs = [plan_one(self.settings, self.command, environ)]
        else:
            specs = plan_many(self.settings, self.command, environ, count=self.count, host=self.host, meeting=meeting)
        if not self.settings.enable_cpu_affinity:
            return specs
        return [replace(spec, cores=tuple(cores)) for spec, cores in zip(specs, self._cores(), strict=True)]

    def _cores(self) -> list[list[int]]:
        """Return the cores of each process, or empty lists if another launcher binds processes."""
        from accel_launch.job.affinity import cores_of_processes

        if self.place is not None:
            return [[] for _ in range(self.count)]
        chosen = self.settings.gpu_ids or "all"
        gpus = visible_devices(self.environ) if chosen == "all" else chosen.split(",")
        return cores_of_processes(self.count, [] if self.settings.cpu else gpus)


def this_host(environ: Mapping[str, str]) -> HostInfo:
    """Return the cores that this process may use, and the accelerators that its children would see."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return HostInfo(cores, len(visible_devices(environ)), "lo0" if sys.platform == "darwin" else "lo")


def read_job(options: ResolvedOptions) -> Job:
    """Return the job on this machine that a command line, an environment and a config file ask for.

    Raises:
        CannotRun: The job cannot start. The error lists every problem.
    """
    settings, environ, host = options.settings, dict(options.environ), this_host(options.environ)
    if place_told(environ) is None:  # a job of its own, which shares nothing with a launcher around it
        environ.pop(MEMORY_CHECKPOINTS, None)
    problems = [
        *options.problems,
        *(
            f"--{name} needs --submit SCHEDULER: without it the job would run here"
            for name in ("submit_options", "kind", "submit_file")
            if settings.is_flag(name)
        ),
        *filter(None, [script_problem(options, Path.cwd())]),
    ]
    if settings.as_accelerate and find_spec("accel_compat") is None:
        problems.append(
            f"--as_accelerate needs package accel-compat, which is not installed for {sys.executable}: in a"
            " clone of accel, pip install ./packages/accel-compat"
        )
    if settings.tee != "3" and settings.log_dir is None:
        problems.append(f"--tee {settings.tee} leaves out what is then nowhere: name a folder for it, --log_dir FOLDER")
    count, node = 1, None
    try:
        node = find_node(settings, environ, host)
        machines = node.count if node is not None else 1
        count = count_processes(settings, environ, host, machines=machines)
        if place_told(environ) is None:
            problems += sharding_problems(settings, count * machines)
    except CannotRun as error:
        problems += error.reasons
    if problems:
        raise CannotRun("accel launch", problems)
    python = () if settings.no_python else (sys.executable, "-m") if settings.module else (sys.executable,)
    command = (*python, options.script or "", *options.arguments)
    now = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.uname().nodename}-{os.getpid()}"
    logs = Path(settings.log_dir).absolute() / now if settings.log_dir is not None else None
    return Job(settings, command, environ, host, count, node, logs)


def become(spec: ProcessSpec) -> None:
    """Replace this process by another process. It never returns.

    Raises:
        CannotRun: The process cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these two, and what is ignored stays so in the next program.
        signal.signal(number, signal.SIG_DFL)
    try:
        if spec.cores and sys.platform == "linux":
            os.sched_setaffinity(0, spec.cores)
        os.execvpe(spec.command[0], spec.command, spec.environ)
    except OSError as error:
        raise CannotRun("accel launch", [f"{spec.command[0]} could not be started: {error}"]) from error
