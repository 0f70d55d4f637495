"""Reads everything a launch depends on, refuses what cannot start with all reasons at once, and runs the rest."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_state.environ import ATTEMPT, JOURNAL, PROGRESS
from accel_state.errors import CannotRun
from accel_state.journal import read

from accel_launch.affinity import cores_of_processes
from accel_launch.arguments import CommandLine
from accel_launch.blame import place_of
from accel_launch.config import ConfigFile, default_config, read_config
from accel_launch.elsewhere import Elsewhere, Fleet
from accel_launch.machines import Place, find_place
from accel_launch.plan import Machine, Ports, ProcessSpec, count_processes, plan_many, plan_one, script_command
from accel_launch.probe import count_accelerators
from accel_launch.script_check import script_problem
from accel_launch.settings import LaunchSettings, Resolved, launch_settings, read_variables, resolve
from accel_launch.signals import Inbox
from accel_launch.streams import ERR, OUT, Streams, shown_of
from accel_launch.supervise import Ended, Outcome, supervise
from accel_launch.verdict import cause_of, described

#: seconds for the last words of a process to arrive, after it has ended
WORDS_S = 0.1


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
        plain = self.logs is None and shown_of(self.settings.tee) == {OUT, ERR}
        return self.count == 1 and self.place is None and plain and not self.settings.max_restarts


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
    return f"{datetime.now():%Y%m%d-%H%M%S}-{socket.gethostname()}-{os.getpid()}"


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


def run_job(job: Job, *, inbox: Inbox, tied: bool = True, attempt: int = 0) -> Outcome:
    """Runs a job of this machine under supervision, from its first process to the end of its last.

    `tied` ones die with this process, and what they print goes through it.

    Raises: CannotRun if a process cannot be started.
    """
    from accel_launch.meeting import Meeting

    if job.count == 1:
        return run_share(job, None, inbox=inbox, tied=tied, attempt=attempt)
    with Meeting() as meeting:
        on_start = meeting.handed_over
        return run_share(job, meeting.ports, inbox=inbox, tied=tied, attempt=attempt, on_start=on_start)


def run_share(
    job: Job,
    ports: Ports | None,
    *,
    inbox: Inbox,
    tied: bool = True,
    attempt: int = 0,
    fleet: Fleet | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs what of a job this machine has, where its processes meet at these ports; one alone meets nobody.

    Raises: CannotRun if a process cannot be started.
    """
    from accel_launch.lifeline import die_with_parent

    parent = os.getpid()

    def before_exec() -> None:
        inbox.in_child()
        die_with_parent(parent)

    environ = {**job.environ, ATTEMPT: str(attempt)}
    with TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        if ports is None:
            specs = [plan_one(job.settings, job.command, {**environ, JOURNAL: name})]
        else:
            specs = plan_many(
                job.settings,
                job.command,
                environ,
                count=job.count,
                machine=job.machine,
                ports=ports,
                journals=folder,
            )
        if job.settings.enable_cpu_affinity:
            specs = [replace(spec, cores=tuple(some)) for spec, some in zip(specs, _cores(job), strict=True)]
        streams = stack.enter_context(Streams(_logs(job, attempt), shown_of(job.settings.tee))) if tied else None
        outcome = supervise(
            specs,
            inbox=inbox,
            before_exec=before_exec if tied else None,
            on_start=on_start,
            grace_s=job.settings.grace_period,
            streams=streams,
            others=fleet,
            on_failure=partial(_tell, fleet, streams, ports) if fleet is not None else None,
        )
        progressed = (folder / PROGRESS).exists()
        waiting = _waiting(folder, [spec.rank for spec in specs]) if ports is not None else {}
        world = (ports.world if ports is not None else None) or job.count
        return replace(outcome, size=world, waiting=waiting, progressed=progressed)


def _cores(job: Job) -> list[list[int]]:
    """The cores of each process: those next to its GPU, or its share of all."""
    chosen = job.settings.gpu_ids
    gpus = [int(one) for one in (chosen or "").split(",") if one.isdecimal()] or list(range(job.count))
    return cores_of_processes(job.count, [] if job.settings.cpu or not job.machine.accelerators else gpus)


def _logs(job: Job, attempt: int) -> Path | None:
    """A new folder for what processes print.

    Raises: CannotRun if it cannot be made.
    """
    if job.logs is None:
        return None
    folder = job.logs / f"attempt-{attempt}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRun("accel launch", [f"log_dir {job.logs.parent}: {error}"]) from error
    return folder


def _tell(fleet: Fleet, streams: Streams | None, ports: Ports | None, ended: Ended) -> None:
    """Tells other machines of a process that has failed, with its last words."""
    time.sleep(WORDS_S)
    said = streams.tails().get(ended.rank, "") if streams is not None else ""
    cause = cause_of(ended, said)
    words = "\n".join(described(ended, (ports.world if ports is not None else None) or 1, cause))
    code = ended.status if ended.status > 0 else 128 - ended.status
    shown = cause.shown if cause is not None else ""
    fleet.tell(Elsewhere(fleet.machine, fleet.host, words, code, shown, place_of(ended, said), fleet.attempt))


def _waiting(journals: Path, ranks: Sequence[int]) -> dict[int, str]:
    """The exchange that each process was in when it ended, by rank; a process notes them where they outlive it."""
    newest = {rank: entries[-1] for rank in ranks if (entries := read(journals / str(rank)))}
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
