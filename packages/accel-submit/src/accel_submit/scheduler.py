"""What all schedulers have in common: the request, the job file, and how it is checked, written and submitted."""

import re
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import ClassVar

from accel_launch.cli.options import BY_NAME, ORIGINS, LaunchSettings
from accel_launch.cli.suggest import did_you_mean
from accel_launch.config.config_writer import replace_text
from accel_launch.job.script_check import script_problem
from accel_state.errors import CannotRun

#: options that say what becomes of the job, and not how it runs; what a config file says is written out as flags
NOT_IN_THE_JOB = ("config_file", "dry_run", "submit", "submit_options", "submit_file", "num_machines")
#: values that a config file of Accelerate's always has, and that ask for nothing
_ASKS_NOTHING = (("machine_rank", 0), ("gpu_ids", "all"))


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A script and its settings, for a number of machines; `options` are for the scheduler, which ignores `ignored`."""

    script: str
    arguments: tuple[str, ...]
    settings: LaunchSettings
    options: Mapping[str, str]
    cwd: Path
    machines: int
    ignored: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The script's name without folders and suffix; of a module, its last part."""
        return self.script.rpartition(".")[2] if self.settings.module else Path(self.script).stem or "accel"

    @property
    def processes_per_machine(self) -> int | None:
        """How many processes each machine starts, or None if nobody said."""
        count = self.settings.num_processes
        return None if count is None else max(1, count // self.machines)

    @property
    def cores(self) -> str | None:
        """The cores that each machine needs, if the settings say; else None."""
        threads, each = self.settings.num_cpu_threads_per_process, self.processes_per_machine
        return str((each or 1) * (threads or 1)) if threads or self.settings.cpu else None

    def words(self, *, without: Iterable[str] = ()) -> list[str]:
        """The words after `accel launch`; a config file of the machine that the job meets is not read."""
        left_out = {*NOT_IN_THE_JOB, *self.ignored, *without}
        said = [name for name in BY_NAME if self.settings.said(name) and name not in left_out]
        flags = [word for name in said for word in BY_NAME[name].words(getattr(self.settings, name))]
        several = self.machines > 1 and "num_machines" not in without
        machines = ["--num_machines", str(self.machines)] if several else []
        script = ["--", self.script] if self.script.startswith("-") else [self.script]
        return ["--config_file", "/dev/null", *flags, *machines, *script, *self.arguments]


@dataclass(frozen=True, slots=True)
class JobFile:
    """The text of a job file, what is wrong with the request, and what the user should know."""

    text: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()


class Scheduler(ABC):
    """One scheduler: how its job is written and submitted."""

    name: str
    default_file: str
    #: the submit option that counts machines, as --num_machines does
    machines_option: str = ""
    #: the submit options that say how many GPUs; the first for each machine
    gpus_options: tuple[str, ...] = ()
    #: options of accel launch that the job cannot follow, and why
    ignores: ClassVar[Mapping[str, str]] = {}
    #: whether the script has to be on this machine
    script_is_here = True
    #: whether names of submit options have dashes, for which a user may write underscores
    dashes = False

    @abstractmethod
    def write_job(self, request: SubmitRequest) -> JobFile:
        """The job for a request; its text counts only without problems."""

    @property
    def marker(self) -> str:
        """What stands at the beginning of a job file, and marks it as one that may be replaced."""
        return f"written by accel launch --submit {self.name}"

    @abstractmethod
    def missing_client(self, environ: Mapping[str, str]) -> str | None:
        """Why nothing can be submitted from here; None if the client is there."""

    @abstractmethod
    def command(self, path: str) -> str:
        """What a user types to submit the file."""

    @abstractmethod
    def submit_file(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits the file, and says as what.

        Raises: CannotRun with what the client says if it refuses.
        """

    def submit(
        self,
        script: str | None,
        arguments: tuple[str, ...],
        settings: LaunchSettings,
        environ: Mapping[str, str],
        *,
        cwd: Path,
        say: Callable[[str], None],
        problems: Sequence[str] = (),
    ) -> None:
        """Writes the job, and submits it unless --dry_run is given or the client is missing.

        Raises: CannotRun with all that is wrong, also `problems`; then no file was written, or the client refused it.
        """
        found, notes = [*problems], list[str]()
        given = settings.submit_options or {}
        options = {name.replace("_", "-") if self.dashes else name: value for name, value in given.items()}
        machines, asked = whole_number(options, self.machines_option, found), settings.num_machines
        if machines is not None and asked is not None and asked != machines:
            differs = f"contradicts --num_machines {asked}: give one of the two"
            found.append(f"submit option {self.machines_option}={machines} {differs}")
        ignored = self._ignored(settings, found, notes)
        request = SubmitRequest(script or "", arguments, settings, options, cwd, asked or machines or 1, ignored)
        found += self._misfits(request)
        if self.script_is_here or script is None or (settings.module and settings.no_python):
            modes = {"module": settings.module, "no_python": settings.no_python}
            found += filter(None, [script_problem(script, **modes, cwd=cwd, environ=environ)])
        job = self.write_job(request)
        shown = settings.submit_file or self.default_file
        found += [*job.problems, *_file_problems(cwd / shown, self.marker)]
        if not found:
            try:
                replace_text(cwd / shown, job.text)
            except OSError as error:
                found.append(f"--submit_file {shown} cannot be written: {error}")
        if found:
            raise CannotRun(f"accel launch --submit {self.name}", found)
        for note in (*notes, *job.notes, f"wrote {shown}"):
            say(f"accel: {note}")
        missing = self.missing_client(environ)
        if settings.dry_run:
            print(job.text, end="", flush=True)
            say(f"accel: nothing was submitted, since --dry_run was given; to submit it: {self.command(shown)}")
        elif missing is not None:
            say(f"accel: {missing}, so nothing was submitted; where it is installed: {self.command(shown)}")
        else:
            say(f"accel: {self.submit_file(cwd / shown, environ)}")

    def _ignored(self, settings: LaunchSettings, problems: list[str], notes: list[str]) -> list[str]:
        """The settings that the job cannot follow: a flag is a problem; what a file or a variable says is noted."""
        names = [name for name in self.ignores if settings.said(name) and getattr(settings, name) is not False]
        for name in names:
            value, why = getattr(settings, name), self.ignores[name]
            shown = " ".join(BY_NAME[name].words(value))
            if settings.is_flag(name) and (name, value) != ("gpu_ids", "all"):
                problems.append(f"{shown}: {why}; leave it out")
            elif (name, value) not in _ASKS_NOTHING:
                notes.append(f"{shown}, which the {ORIGINS[settings.origin(name)]} says, is left out: {why}")
        return [name for name in names if (name, getattr(settings, name)) != ("gpu_ids", "all")]

    def _misfits(self, request: SubmitRequest) -> list[str]:
        """Why processes, machines and GPUs do not fit."""
        count, machines, each = request.settings.num_processes, request.machines, request.processes_per_machine
        problems, name = [], self.gpus_options[0] if self.gpus_options else ""
        gpus = request.options.get(name, "")
        if count is not None and count % machines:
            problems.append(
                f"--num_processes {count} on {machines} machines: it counts the processes of all machines, and each has"
                f" the same number; ask for {machines * -(-count // machines)}, or for another --num_machines"
            )
        if each is not None and gpus.isdecimal() and int(gpus) < each and not request.settings.cpu:
            problems.append(
                f"submit option {name}={gpus}: --num_processes {count} puts {each} processes on each machine,"
                " and each of them needs a GPU"
            )
        if name and each is None and not request.settings.cpu and not request.options.keys() & {*self.gpus_options}:
            problems.append(
                "how many GPUs is not said: give --num_processes, which counts those of all machines, or"
                f" --submit_options {name}=N for each machine, or --cpu"
            )
        return problems


class ProgramScheduler(Scheduler):
    """A scheduler whose client is a program."""

    #: the command that submits a file
    client: tuple[str, ...]
    #: what makes it print only the job
    quietly: tuple[str, ...] = ()

    @abstractmethod
    def describe(self, printed: str) -> str:
        """The job, from what the client printed of it."""

    def missing_client(self, environ: Mapping[str, str]) -> str | None:
        """The program, unless it is in PATH."""
        name = self.client[0]
        return None if shutil.which(name, path=environ.get("PATH")) else f"there is no {name} in PATH"

    def command(self, path: str) -> str:
        """The program with the file."""
        return shlex.join([*self.client, path])

    def submit_file(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits the file, and says as what.

        Raises: CannotRun with the words of the program if it refuses.
        """
        name, *words = *self.client, *self.quietly, str(path)
        program = shutil.which(name, path=environ.get("PATH")) or name
        try:
            done = subprocess.run([program, *words], env=dict(environ), capture_output=True, text=True, check=False)
        except OSError as error:
            raise CannotRun(name, [f"{name} could not be started: {error}"]) from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split()) or "it says nothing"
            raise CannotRun(name, [f"{shlex.join([name, *words])} failed with exit code {done.returncode}: {said}"])
        return f"submitted as {self.describe(done.stdout.strip())}"


def _file_problems(path: Path, marker: str) -> list[str]:
    """Why a job must not be written to a path; a file may be replaced only if it begins with the marker."""
    if not path.parent.is_dir():
        return [f"--submit_file {path}: there is no folder {path.parent}; make it, or name another file"]
    if not path.exists() or marker.encode() in path.read_bytes()[:400]:
        return []
    move = "move it away, or give another --submit_file"
    return [f"{path} is there already, and accel launch has not written it; {move}"]


def unknown_options(options: Iterable[str], known: Iterable[str], scheduler: str) -> list[str]:
    """A problem for each submit option that the scheduler does not have."""
    known = list(known)
    return [
        f"submit option {name!r} is none of those for {scheduler}"
        + (did_you_mean(name, known) or f"; there are: {', '.join(known)}")
        for name in options
        if name not in known
    ]


def whole_number(options: Mapping[str, str], name: str, problems: list[str], *, least: int = 1) -> int | None:
    """The number that a submit option holds, or None if it is not given; anything else becomes a problem."""
    word = options.get(name)
    if word is None or (word.isascii() and word.isdigit() and int(word) >= least):
        return None if word is None else int(word)
    problems.append(f"submit option {name}={word}: expected a whole number of at least {least}")
    return None


def render(template: str, values: Mapping[str, str | None]) -> str:
    """The template with each $name replaced by its value; a line with the name of a None is left out."""
    absent = re.compile("|".join(rf"\${name}\b" for name, value in values.items() if value is None) or r"(?!)")
    lines = [line for line in template.splitlines(keepends=True) if not absent.search(line)]
    return Template("".join(lines)).substitute({name: value for name, value in values.items() if value is not None})
