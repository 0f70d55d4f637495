"""`accel verify`: runs a script as configured and as plain PyTorch, and names the first thing that differs."""

import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from accel_launch.arguments import CommandLine, split
from accel_launch.help_text import verify_help
from accel_launch.kinds import Value
from accel_launch.options import BY_FLAG

TRIAL = "accel.verification.trial"
STEPS = 5
OWN = ("--steps", "--tolerance")


def run(tokens: Sequence[str]) -> int:
    """Exit code 0 if nothing differs, 1 if something does or the script fails.

    Raises: CannotRun with every reason why nothing was started.
    """
    own, rest = own_options(tokens)
    line = split(rest)
    if line.help:
        print(verify_help(), end="")
        return 0
    from accel_state.environ import process_environ
    from accel_state.errors import CannotRun

    from accel_launch.job import Job, job_from
    from accel_launch.running import run_job
    from accel_launch.signals import command_line_inbox
    from accel_launch.verdict import explain

    steps, tolerance, problems = _read(own)
    if line.flags.get("no_python"):
        problems.append("--no_python: only a Python script can be verified")
    if find_spec("accel") is None:
        problems.append(f"package accel is not installed for {sys.executable}; install it next to accel-launch")
    environ = process_environ()
    try:
        job = job_from(line, environ)
    except CannotRun as error:
        raise CannotRun("accel verify", [*problems, *error.reasons]) from None
    if job.place is not None:
        problems.append("accel verify runs on one machine: leave out --num_machines")
    if problems:
        raise CannotRun("accel verify", problems)
    with tempfile.TemporaryDirectory(prefix="accel-verify-") as folder:

        def trial(role: str, flags: dict[str, Value]) -> Job:
            options = ["--steps", str(steps), *(["--tolerance", str(tolerance)] if tolerance is not None else [])]
            options += ["--module"] if line.flags.get("module") else []
            arguments = (role, folder, *options, line.script or "", *line.arguments)
            return job_from(CommandLine({**flags, "module": True}, TRIAL, arguments, False, ()), environ)

        processes = "1 process" if job.count == 1 else f"{job.count} processes"
        _say(f"{steps} optimizer steps as configured, on {processes}; dropout is off, files are not saved")
        outcome = run_job(trial("configured", {**line.flags, "num_processes": job.count}), inbox=command_line_inbox())
        last_words = explain(outcome)
        if last_words is not None:
            print(last_words, file=sys.stderr, flush=True)
            _say("the script failed as configured: nothing was compared")
            return 1 if outcome.outside is None else outcome.code
        _say("the same steps as plain PyTorch: one process on the CPU, in float32, with the batches of all processes")
        alone = {name: value for name, value in line.flags.items() if name not in ("gpu_ids", "fp16")}
        alone |= {"num_processes": 1, "cpu": True, "mixed_precision": "no"}
        outcome = run_job(trial("plain", alone), inbox=command_line_inbox())
        last_words = explain(outcome)
        if last_words is not None and not (Path(folder) / "verdict").exists():
            print(last_words, file=sys.stderr, flush=True)
            _say("the script failed as plain PyTorch: nothing was compared")
            return 1 if outcome.outside is None else outcome.code
        return min(outcome.code, 1)


def own_options(tokens: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options that only `accel verify` has, and all other tokens; what follows the script is the script's own."""
    own: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        flag, _, attached = token.partition("=")
        if token == "--" or not token.startswith("-"):
            break
        position += 1
        if flag in OWN:
            if not attached and position < len(tokens):
                attached = tokens[position]
                position += 1
            own[flag] = attached
            continue
        rest.append(token)
        takes_value = token in BY_FLAG and BY_FLAG[token][0].kind.takes_value
        if takes_value and position < len(tokens):
            rest.append(tokens[position])
            position += 1
    return own, [*rest, *tokens[position:]]


def _read(own: dict[str, str]) -> tuple[int, float | None, list[str]]:
    problems = []
    steps, tolerance = own.get("--steps", str(STEPS)), own.get("--tolerance")
    if not steps.isdecimal() or int(steps) < 1:
        problems.append(f"--steps {steps!r}: expected a whole number of at least 1")
    number = None
    if tolerance is not None:
        try:
            number = float(tolerance)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            problems.append(f"--tolerance {tolerance!r}: expected a number such as 1e-4")
    return (0 if problems else int(steps)), number, problems


def _say(text: str) -> None:
    print(f"accel verify: {text}", flush=True)
