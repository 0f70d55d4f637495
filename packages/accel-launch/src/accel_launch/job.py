"""Reads everything a launch depends on, and refuses what cannot start with all reasons at once."""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_state.errors import CannotRun

from accel_launch.arguments import CommandLine, flags_for_a_queue
from accel_launch.config import ConfigFile, default_config, read_config
from accel_launch.machines import Place, find_place
from accel_launch.plan import Machine, ProcessSpec, count_processes, plan_one, script_command
from accel_launch.probe import count_accelerators
from accel_launch.script_check import script_problem
from accel_launch.settings import LaunchSettings, Resolved, launch_settings, of_accelerate, read_variables, resolve


@dataclass(frozen=True, slots=True)
class Choices:
    """Every option's winning value, the file that took part, and what is wrong with any of the sources."""

    resolved: Mapping[str, Resolved]
    file: Path | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A launch that nothing is known to stand against: `count` processes of one command on this machine.

    `place` is that of this machine among several, and `logs` the folder for what processes print.
    """

    settings: LaunchSettings
    command: tuple[str, ...]
    environ: Mapping[str, str]
    machine: Machine
    count: int
    place: Place | None = None
    logs: Path | None = None

    @property
    def alone(self) -> bool:
        """Whether its one process needs nobody who watches it."""
        plain = self.logs is None and self.settings.tee == "3"
        return self.count == 1 and self.place is None and plain and not self.settings.max_restarts


def this_machine(environ: Mapping[str, str]) -> Machine:
    """The cores that this process may use, and the accelerators that its children would see."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return Machine(cores, count_accelerators(environ), "lo0" if sys.platform == "darwin" else "lo")


def choose(line: CommandLine, environ: Mapping[str, str]) -> Choices:
    """The winning values of a command line, an environment and the config file that either of them names."""
    variables, wrong = read_variables(environ)
    problems = [*line.problems, *wrong, *of_accelerate(environ, line.flags)]
    named = line.flags.get("config_file", variables.get("config_file"))
    path = Path(str(named)) if named is not None else default_config(environ)
    file = ConfigFile(path, {}) if path is not None else None
    if path is not None:
        try:
            file = read_config(path)
        except CannotRun as error:
            problems += [f"{error.what}: {reason}" for reason in error.reasons]
    if file is not None:
        problems += file.problems
    return Choices(resolve(line.flags, variables, file.values if file is not None else {}), path, tuple(problems))


def read_job(line: CommandLine, environ: Mapping[str, str], *, cwd: Path, machine: Machine, interpreter: str) -> Job:
    """The job that a command line, an environment and a config file ask for.

    Raises: CannotRun with every problem that was found.
    """
    choices = choose(line, environ)
    settings = launch_settings(choices.resolved)
    problems = [*choices.problems, *flags_for_a_queue(line, settings.submit)]
    # An unknown option ends the reading: then nobody knows what the script is.
    if line.script is not None or not line.problems:
        wrong = script_problem(
            line.script, module=settings.module, no_python=settings.no_python, cwd=cwd, environ=environ
        )
        problems += [wrong] if wrong is not None else []
    if settings.tee != "3" and settings.log_dir is None:
        problems.append(f"--tee {settings.tee} leaves out what is then nowhere: name a folder for it, --log_dir FOLDER")
    count, place = 1, None
    try:
        place = find_place(settings, environ, machine)
        count = count_processes(settings, environ, machine, machines=place.count if place is not None else 1)
    except CannotRun as error:
        problems += error.reasons
    if problems:
        raise CannotRun("accel launch", problems)
    command = script_command(line.script or "", line.arguments, settings=settings, interpreter=interpreter)
    logs = Path(settings.log_dir).absolute() / _name_of_now() if settings.log_dir is not None else None
    return Job(settings, command, environ, machine, count, place, logs)


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


def job_from(line: CommandLine, environ: Mapping[str, str]) -> Job:
    """The job for this machine, this interpreter and the working directory.

    Raises: CannotRun with every problem that was found.
    """
    return read_job(line, environ, cwd=Path.cwd(), machine=this_machine(environ), interpreter=sys.executable)


def without_script(line: CommandLine, command: str) -> Sequence[str]:
    """The problems of a command line that may only hold options."""
    stray = [] if line.script is None else [f"{command} takes options only, found {line.script!r}"]
    return [*stray, *(f"{command} takes no {name}" for name in ("module", "no_python") if name in line.flags)]
