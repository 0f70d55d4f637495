"""Reads everything a launch depends on, refuses what cannot start with all reasons at once, and runs the rest."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_state.environ import ATTEMPT, JOURNAL, PROGRESS
from accel_state.errors import CannotRun
from accel_state.journal import read

from accel_launch.arguments import CommandLine
from accel_launch.config import ConfigFile, default_config, read_config
from accel_launch.plan import Machine, count_processes, plan_many, plan_one, script_command
from accel_launch.probe import count_accelerators
from accel_launch.script_check import script_problem
from accel_launch.settings import LaunchSettings, Resolved, launch_settings, read_variables, resolve
from accel_launch.signals import Inbox
from accel_launch.supervise import Outcome, supervise


@dataclass(frozen=True, slots=True)
class Choices:
    """Every option's winning value, the file that took part, and what is wrong with any of the sources."""

    resolved: Mapping[str, Resolved]
    file: Path | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A launch that nothing is known to stand against: `count` processes of one command."""

    settings: LaunchSettings
    command: tuple[str, ...]
    environ: Mapping[str, str]
    machine: Machine
    count: int


def this_machine(environ: Mapping[str, str]) -> Machine:
    """The cores that this process may use, and the accelerators that its children would see."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return Machine(cores, count_accelerators(environ), "lo0" if sys.platform == "darwin" else "lo")


def choose(line: CommandLine, environ: Mapping[str, str]) -> Choices:
    """The winning values of a command line, an environment and the config file that either of them names."""
    variables, wrong = read_variables(environ)
    problems = [*line.problems, *wrong]
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
    problems = list(choices.problems)
    # An unknown option ends the reading: then nobody knows what the script is.
    if line.script is not None or not line.problems:
        wrong = script_problem(
            line.script, module=settings.module, no_python=settings.no_python, cwd=cwd, environ=environ
        )
        problems += [wrong] if wrong is not None else []
    count = 1
    try:
        count = count_processes(settings, environ, machine)
    except CannotRun as error:
        problems += error.reasons
    if problems:
        raise CannotRun("accel launch", problems)
    command = script_command(line.script or "", line.arguments, settings=settings, interpreter=interpreter)
    return Job(settings, command, environ, machine, count)


def become(job: Job) -> None:
    """Replaces this process by the one process of a job; returns never."""
    spec = plan_one(job.settings, job.command, job.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these two, and what is ignored stays so in the next program.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(spec.command[0], spec.command, dict(spec.environ))
    except OSError as error:
        raise CannotRun("accel launch", [f"{spec.command[0]} could not be started: {error}"]) from error


def run_job(job: Job, *, inbox: Inbox, tied: bool = True, attempt: int = 0) -> Outcome:
    """Runs a job under supervision, from its first process to the end of its last; `tied` ones die with this process.

    Raises: CannotRun if a process cannot be started.
    """
    from accel_launch.lifeline import die_with_parent
    from accel_launch.meeting import Meeting

    parent = os.getpid()

    def before_exec() -> None:
        inbox.in_child()
        die_with_parent(parent)

    prepare, grace_s = before_exec if tied else None, job.settings.grace_period
    environ = {**job.environ, ATTEMPT: str(attempt)}
    with TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if job.count == 1:
            spec = plan_one(job.settings, job.command, {**environ, JOURNAL: name})
            outcome = supervise([spec], inbox=inbox, before_exec=prepare, grace_s=grace_s)
            return replace(outcome, progressed=(folder / PROGRESS).exists())
        with Meeting() as meeting:
            specs = plan_many(
                job.settings,
                job.command,
                environ,
                count=job.count,
                machine=job.machine,
                ports=meeting.ports,
                journals=folder,
            )
            outcome = supervise(specs, inbox=inbox, before_exec=prepare, on_start=meeting.handed_over, grace_s=grace_s)
        progressed = (folder / PROGRESS).exists()
        return replace(outcome, waiting=_waiting(folder, job.count), progressed=progressed)


def _waiting(journals: Path, count: int) -> dict[int, str]:
    """The exchange that each process was in when it ended, by rank; a process notes them where they outlive it."""
    newest = {rank: entries[-1] for rank in range(count) if (entries := read(journals / str(rank)))}
    return {rank: f"{entry} (exchange {entry.number})" for rank, entry in newest.items() if entry.ended is None}


def job_from(line: CommandLine, environ: Mapping[str, str]) -> Job:
    """The job for this machine, this interpreter and the working directory.

    Raises: CannotRun with every problem that was found.
    """
    return read_job(line, environ, cwd=Path.cwd(), machine=this_machine(environ), interpreter=sys.executable)


def without_script(line: CommandLine, command: str) -> Sequence[str]:
    """The problems of a command line that may only hold options."""
    stray = [] if line.script is None else [f"{command} takes options only, found {line.script!r}"]
    return [*stray, *(f"{command} takes no {name}" for name in ("module", "no_python") if name in line.flags)]
