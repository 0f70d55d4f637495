"""The base class of schedulers: a request becomes a job file, which is checked, written and submitted."""

import re
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import click
from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.option_types import OptionType
from accel_launch.cli.options import BY_NAME, ORIGINS, LaunchSettings
from accel_launch.cli.suggest import did_you_mean
from accel_launch.config.config_writer import replace_text
from accel_launch.job.script_check import script_problem
from accel_state.errors import CannotRun

#: options that say what becomes of the job, and not how it runs; what a config file says is written out as flags
NOT_IN_THE_JOB = ("config_file", "dry_run", "submit", "submit_options", "kind", "submit_file", "num_machines")

Types = Mapping[str, "click.ParamType[Any]"]
TEXT = OptionType("TEXT", "a word", lambda text: text or None)


def matching(pattern: str, expected: str) -> OptionType:
    """Return the type of the texts that match a pattern.

    Args:
        pattern: Regular expression for the whole text.
        expected: What the text should be, for error messages.
    """
    return OptionType("TEXT", expected, lambda text: text if re.fullmatch(pattern, text) else None)


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A script to submit, with its settings.

    Args:
        script: Path of the script, or name of its module.
        arguments: Arguments of the script.
        settings: Settings of `accel launch`.
        options: Submit options by name, as values of their types.
        cwd: Working directory of the launch.
        machines: Number of machines.
        ignored: Names of the settings that the job leaves out.
        problems: What is wrong with the request. A scheduler adds to it.
        notes: What the user should know. A scheduler adds to it.
    """

    script: str
    arguments: tuple[str, ...]
    settings: LaunchSettings
    options: Mapping[str, Any]
    cwd: Path
    machines: int
    ignored: Sequence[str]
    problems: list[str]
    notes: list[str]

    @property
    def name(self) -> str:
        """The name of the script without folders and suffix, or the last part of the name of a module."""
        return self.script.rpartition(".")[2] if self.settings.module else Path(self.script).stem or "accel"

    @property
    def processes_per_machine(self) -> int | None:
        """The number of processes of each machine, or None if no setting gives it."""
        count = self.settings.num_processes
        return None if count is None else max(1, count // self.machines)

    @property
    def cores(self) -> str | None:
        """The number of cores that each machine needs, or None if no setting gives it."""
        threads, processes = self.settings.num_cpu_threads_per_process, self.processes_per_machine
        return str((processes or 1) * (threads or 1)) if threads or self.settings.cpu else None

    def words(self, *without: str) -> list[str]:
        """Return the words after `accel launch` in the job.

        They have all settings as flags, so that the job reads no config file of its machine.

        Args:
            without: Names of settings to leave out.
        """
        left_out = {*NOT_IN_THE_JOB, *self.ignored, *without}
        said = [name for name in BY_NAME if self.settings.said(name) and name not in left_out]
        flags = [word for name in said for word in BY_NAME[name].words(getattr(self.settings, name))]
        machines = ["--num_machines", str(self.machines)] if self.machines > 1 else []
        script = ["--", self.script] if self.script.startswith("-") else [self.script]
        return ["--config_file", "/dev/null", *flags, *machines, *script, *self.arguments]


class Scheduler(ABC):
    """A scheduler: its options, how its job is written, and the program that submits a job file.

    A subclass sets `name`, `default_file`, `client` and `types`, and implements `write_job`.
    """

    name: str
    default_file: str
    #: the program that submits a file, and the Python package that it needs
    client: tuple[str, ...]
    client_package: str = ""
    #: the submit options whose type is known
    types: ClassVar[Types]
    #: whether there are other options, whose names have dashes, for which a user may write underscores
    takes_others = False
    #: the submit option that counts machines, as --num_machines does
    machines_option: str = ""
    #: the submit options that say how many GPUs; the first for each machine
    gpus_options: tuple[str, ...] = ()
    #: options of accel launch that the job cannot follow, and why
    ignores: ClassVar[Mapping[str, str]] = {}
    #: whether the script has to be on this machine
    script_is_here = True

    @abstractmethod
    def write_job(self, request: SubmitRequest) -> str:
        """Return the text of the job file for a request.

        What is wrong is added to `request.problems`. Then the text is not used.
        """

    @property
    def marker(self) -> str:
        """The text at the beginning of a job file that marks the file as replaceable."""
        return f"written by accel launch --submit {self.name}"

    def submit(self, options: ResolvedOptions, *, cwd: Path, say: Callable[[str], None]) -> None:
        """Write the job file, and submit it unless --dry_run is given or the client is missing.

        The client prints its own messages.

        Args:
            options: The script, its arguments and the settings.
            cwd: Working directory of the launch, for relative paths.
            say: Function that prints a line for the user.

        Raises:
            CannotRun: There are problems, and no file was written; the message lists all. Or the client failed.
        """
        settings, script = options.settings, options.script
        problems = [*options.problems]
        notes: list[str] = []
        texts = dict(settings.submit_options or {})
        if settings.kind is not None:
            if "kind" not in self.types:
                problems.append(f"--kind {settings.kind}: {self.name} has one kind of job; leave --kind out")
            elif texts.setdefault("kind", settings.kind) != settings.kind:
                problems.append(f"submit option kind={texts['kind']} contradicts --kind {settings.kind}")
        given = self._read(texts, problems)
        machines, asked = given.get(self.machines_option), settings.num_machines
        if machines and asked and asked != machines:
            problems.append(f"submit option {self.machines_option}={machines} contradicts --num_machines {asked}")
        count, ignored = asked or machines or 1, self._ignored(settings, problems, notes)
        request = SubmitRequest(script or "", options.arguments, settings, given, cwd, count, ignored, problems, notes)
        self._check_counts(request)
        if self.script_is_here or script is None:
            problems += filter(None, [script_problem(options, cwd)])
        text, shown = self.write_job(request), settings.submit_file or self.default_file
        path, command = cwd / shown, shlex.join([*self.client, shown])
        if path.exists() and self.marker.encode() not in path.read_bytes()[:400]:
            move = "move it away, or give another --submit_file"
            problems.append(f"{path} is there already, and accel launch has not written it; {move}")
        try:
            if not problems:
                replace_text(path, text)
        except OSError as error:
            problems.append(f"--submit_file {shown} cannot be written: {error}")
        if problems:
            raise CannotRun(f"accel launch --submit {self.name}", problems)
        for note in (*notes, f"wrote {shown}"):
            say(f"accel: {note}")
        program = shutil.which(self.client[0], path=options.environ.get("PATH"))
        if settings.dry_run:
            print(text, end="", flush=True)
            say(f"accel: nothing was submitted, since --dry_run was given; to submit it: {command}")
        elif program is None or (self.client_package and find_spec(self.client_package) is None):
            missing = f"{self.client_package} is not installed" if program else f"there is no {self.client[0]} in PATH"
            say(f"accel: {missing}, so nothing was submitted; where it is installed: {command}")
        elif code := subprocess.run([program, *self.client[1:], path], env=options.environ, check=False).returncode:
            raise CannotRun(command, [f"{command} failed with exit code {code}; its own message is above"])

    def _read(self, texts: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
        """Return the submit options by name, as values of their types."""
        values: dict[str, Any] = {}
        for name, text in texts.items():
            name = name.replace("_", "-") if self.takes_others else name
            if name in self.types:
                try:
                    values[name] = self.types[name].convert(text, None, None)
                except click.BadParameter as error:
                    problems.append(f"submit option {name}={text}: {error.message}")
            elif self.takes_others:
                values[name] = text
            else:
                known = did_you_mean(name, self.types) or f"; there are: {', '.join(self.types)}"
                problems.append(f"submit option {name!r} is none of those for {self.name}{known}")
        return values

    def _ignored(self, settings: LaunchSettings, problems: list[str], notes: list[str]) -> list[str]:
        """Return the settings that the job cannot follow: a flag is a problem, another origin is noted."""
        names = [name for name in self.ignores if settings.said(name)]
        for name in names:
            value, why = getattr(settings, name), self.ignores[name]
            shown = " ".join(BY_NAME[name].words(value))
            if value in (0, "all"):  # the first machine, all GPUs, a switch that is off
                continue
            if settings.is_flag(name):
                problems.append(f"{shown}: {why}; leave it out")
            else:
                notes.append(f"{shown}, which the {ORIGINS[settings.origin(name)]} says, is left out: {why}")
        return names

    def _check_counts(self, request: SubmitRequest) -> None:
        """Add to the problems why processes, machines and GPUs do not fit."""
        count, machines, here = request.settings.num_processes, request.machines, request.processes_per_machine
        name = self.gpus_options[0] if self.gpus_options else ""
        gpus = str(request.options.get(name, ""))
        if count is not None and count % machines:
            even = f"and each has the same number; ask for {machines * -(-count // machines)}"
            request.problems.append(f"--num_processes {count} on {machines} machines: it counts those of all, {even}")
        if here is not None and gpus.isdecimal() and int(gpus) < here and not request.settings.cpu:
            puts = f"--num_processes {count} puts {here} processes on each machine, and each of them needs a GPU"
            request.problems.append(f"submit option {name}={gpus}: {puts}")
        if name and here is None and not request.settings.cpu and not request.options.keys() & {*self.gpus_options}:
            give = f"--num_processes for all machines, or --submit_options {name}=N for each, or --cpu"
            request.problems.append(f"how many GPUs is not said: give {give}")


def render(template: str, values: Mapping[str, str | None]) -> str:
    """Return a template with its names replaced by values.

    Args:
        template: Lines with names such as $name.
        values: Value of each name. A line with a name whose value is None is left out.
    """
    absent = {name for name, value in values.items() if value is None}
    lines = [Template(line) for line in template.splitlines(keepends=True)]
    return "".join(line.substitute(values) for line in lines if absent.isdisjoint(line.get_identifiers()))
