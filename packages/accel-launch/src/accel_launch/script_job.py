"""For commands of other packages that run a script in a way of their own: the options are those of `accel launch`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from accel_launch.arguments import HELP, CommandLine, split
from accel_launch.kinds import Value
from accel_launch.options import BY_FLAG


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A script with its arguments, and how `accel launch` would start it: on `count` processes of this machine."""

    line: CommandLine
    environ: Mapping[str, str]
    count: int

    def run(
        self, module: str, arguments: Sequence[str], *, without: Collection[str] = (), **flags: Value
    ) -> tuple[int, str]:
        """Runs a module in place of the script, to its end: the exit code, and the last words on a failure.

        `flags` are options that differ, and `without` those that are left out. A failure has exit code 1, unless
        somebody ended the job.
        """
        from accel_launch.job import job_from
        from accel_launch.running import run_job
        from accel_launch.signals import command_line_inbox
        from accel_launch.verdict import explain

        kept = {name: value for name, value in self.line.flags.items() if name not in without}
        line = CommandLine({**kept, **flags, "module": True}, module, tuple(arguments), False, ())
        outcome = run_job(job_from(line, self.environ), inbox=command_line_inbox())
        code = min(outcome.code, 1) if outcome.outside is None else outcome.code
        return code, explain(outcome) or ""


def read_script_job(command: str, tokens: Sequence[str], problems: Sequence[str]) -> ScriptJob:
    """What a command line asks for.

    Raises: CannotRun with `problems` and all others.
    """
    from accel_state.environ import process_environ
    from accel_state.errors import CannotRun

    from accel_launch.job import job_from

    line, environ, wrong = split(tokens), process_environ(), list(problems)
    if line.flags.get("no_python"):
        wrong.append(f"--no_python: {command} runs Python scripts only")
    try:
        job = job_from(line, environ)
    except CannotRun as error:
        raise CannotRun(command, [*wrong, *error.reasons]) from None
    if job.place is not None:
        wrong.append(f"{command} runs on one machine: leave out --num_machines")
    if wrong:
        raise CannotRun(command, wrong)
    return ScriptJob(line, environ, job.count)


def take_own_options(tokens: Sequence[str], own: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """The values of options that only a command has, --help among them, and all other tokens.

    What follows the script is the script's own.
    """
    values: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        flag, _, attached = token.partition("=")
        if token == "--" or not token.startswith("-"):
            break
        position += 1
        if token in HELP:
            values["--help"] = ""
            continue
        if flag in own:
            if not attached and position < len(tokens):
                attached = tokens[position]
                position += 1
            values[flag] = attached
            continue
        rest.append(token)
        if token in BY_FLAG and BY_FLAG[token][0].kind.takes_value and position < len(tokens):
            rest.append(tokens[position])
            position += 1
    return values, [*rest, *tokens[position:]]
