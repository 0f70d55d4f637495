"""What every queue has in common: what it is asked for, what it makes of it, and how settings become flags again."""

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accel_state.errors import CannotRun

from accel_launch.nearest import did_you_mean
from accel_launch.options import BY_NAME, OPTIONS
from accel_launch.settings import LaunchSettings, Origin

#: the options that say what becomes of the job, and not how it runs; what a file says is written out as flags
NOT_IN_THE_JOB = frozenset({"config_file", "dry_run", "submit", "submit_options", "submit_file"})
#: the options by which a machine learns its place, which a queue knows better
PLACE = ("machine_rank", "main_process_ip")
NOTHING = frozenset({("machine_rank", 0), ("gpu_ids", "all")})


@dataclass(frozen=True, slots=True)
class Request:
    """What is to run on how many machines, and what the queue is to know of it."""

    script: str | None
    arguments: tuple[str, ...]
    settings: LaunchSettings
    options: Mapping[str, str]
    environ: Mapping[str, str]
    cwd: Path
    machines: int

    @property
    def name(self) -> str:
        """The script's name without folders and suffix; of a module, its last part."""
        script = self.script or "accel"
        return script.rpartition(".")[2] if self.settings.module else Path(script).stem or "accel"

    def processes_per_machine(self) -> int | None:
        """How many processes each machine starts, or None if nobody said."""
        return None if self.settings.num_processes is None else max(1, self.settings.num_processes // self.machines)

    def uneven(self) -> list[str]:
        """The problem of a number of processes that cannot be shared out equally."""
        count, machines = self.settings.num_processes, self.machines
        if count is None or count % machines == 0:
            return []
        return [
            f"--num_processes {count} on {machines} machines: it counts the processes of all machines, and each has"
            f" the same number; ask for {machines * -(-count // machines)}, or for another --num_machines"
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """The text of a job's file, what stands against it, and what the user is to know."""

    text: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Queue(ABC):
    """One kind of queue: how its job is written and submitted."""

    default_file: str
    marker: str
    #: the submit option that counts machines, as --num_machines does
    machines_option: str | None

    @abstractmethod
    def plan(self, request: Request) -> Plan:
        """The job for a request; its text counts only without problems."""

    @abstractmethod
    def missing(self, environ: Mapping[str, str]) -> str | None:
        """What is not installed here that submits jobs, in words; None if all is there."""

    @abstractmethod
    def command(self, path: str) -> str:
        """What a user types to submit the file."""

    @abstractmethod
    def hand_over(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits the file, and gives the words that say as what.

        Raises: CannotRun with what the queue says if it refuses.
        """


def options_of(settings: LaunchSettings) -> tuple[dict[str, str], list[str]]:
    """The submit options by name, and each that was given twice with different values."""
    options: dict[str, str] = {}
    problems: list[str] = []
    for entry in settings.submit_options.split(",") if settings.submit_options else []:
        name, _, value = entry.partition("=")
        if options.setdefault(name, value) != value:
            problems.append(
                f"submit option {name} is given twice: {options[name]!r} and {value!r}; give one of the two"
            )
    return options, problems


def machines_of(settings: LaunchSettings, options: Mapping[str, str], name: str | None) -> tuple[int, list[str]]:
    """How many machines the settings or a submit option ask for, else one; and the problem if the two differ."""
    word, asked = options.get(name) if name is not None else None, settings.num_machines
    if word is None:
        return asked or 1, []
    if not (word.isascii() and word.isdigit() and int(word) >= 1):
        return asked or 1, [f"submit option {name}={word}: expected a whole number of at least 1"]
    if asked is not None and asked != int(word):
        return asked, [f"submit option {name}={word} contradicts --num_machines {asked}: give one of the two"]
    return int(word), []


def unknown(options: Iterable[str], known: Sequence[str], queue: str) -> list[str]:
    """A problem for each option that the queue does not have."""
    problems = []
    for name in options:
        if name not in known:
            meant = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
            problems.append(f"submit option {name!r} is none of {queue}{meant}")
    return problems


@dataclass(slots=True)
class LeftOut:
    """Settings that mean nothing in the queue: a flag is refused, and what a file or a variable says is left out."""

    names: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def left_out(settings: LaunchSettings, names: Iterable[str], why: str) -> LeftOut:
    """Which of some settings were said, and must not be followed."""
    found = LeftOut()
    for name in names:
        value = getattr(settings, name)
        if not settings.said(name) or value is False:
            continue
        found.names.append(name)
        shown = " ".join(_words(name, value))
        if settings.origins[name] is Origin.FLAG:
            found.problems.append(f"{shown}: {why}; leave it out")
        elif (name, value) not in NOTHING:
            found.notes.append(f"{shown}, which the {settings.origins[name].value} says, is left out: {why}")
    return found


def chosen_gpus(settings: LaunchSettings, queue: str) -> LeftOut:
    """GPUs by number, which a queue that gives GPUs to jobs cannot be asked for."""
    names = () if settings.gpu_ids in (None, "all") else ("gpu_ids",)
    return left_out(settings, names, f"{queue} gives the job its GPUs, numbered from 0; ask for a number of them")


def launch_words(request: Request, *, without: Iterable[str] = ()) -> list[str]:
    """The words after `accel launch`: a flag for everything that anybody said, the script, its arguments.

    The settings of this place hold there and no others: a config file of the machine that the job meets is not read.
    """
    settings, skipped = request.settings, NOT_IN_THE_JOB | set(without)
    words = ["--config_file", "/dev/null"]
    for option in OPTIONS:
        if option.stands_for is not None or option.name in skipped:
            continue
        if option.name == "num_machines":
            words += ["--num_machines", str(request.machines)] if request.machines > 1 else []
        elif settings.said(option.name):
            words += _words(option.name, getattr(settings, option.name))
    script = request.script or ""
    return [*words, *(["--"] if script.startswith("-") else []), script, *request.arguments]


def _words(name: str, value: object) -> list[str]:
    option = BY_NAME[name]
    if option.kind.takes_value:
        return [option.flags[-1], str(value)]
    if value:
        return [option.flags[-1]]
    return [option.off[0]] if option.off else []


def whole_number(options: Mapping[str, str], name: str, problems: list[str], *, least: int = 1) -> int | None:
    """The number that an option holds, or None if it is not given; what is no number becomes a problem."""
    word = options.get(name)
    if word is None:
        return None
    if word.isascii() and word.isdigit() and int(word) >= least:
        return int(word)
    problems.append(f"submit option {name}={word}: expected a whole number of at least {least}")
    return None


def label(name: str, *, longest: int) -> str:
    """A name in lower-case letters, digits and dashes that begins with a letter, as DNS has them."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    return plain[:longest].rstrip("-")


def run_client(command: Sequence[str], environ: Mapping[str, str], *, cwd: Path) -> str:
    """What a program of the queue prints when it takes the job.

    Raises: CannotRun with its words if it does not.
    """
    program = shutil.which(command[0], path=environ.get("PATH")) or command[0]
    try:
        done = subprocess.run(
            [program, *command[1:]], env=dict(environ), cwd=cwd, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise CannotRun(command[0], [f"{command[0]} could not be started: {error}"]) from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or "it says nothing"
        raise CannotRun(command[0], [f"{' '.join(command)} failed with exit code {done.returncode}: {said}"])
    return done.stdout.strip()
