"""The command `accel`: finds the subcommand, and turns its refusals into words and exit codes."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from accel_launch.command_plugins import EXTRAS, load_command
from accel_launch.nearest import did_you_mean

COMMANDS = {
    "config": "write, update and show the file of settings",
    "launch": "start a script on one or many processes",
    "test": "check that processes on this machine find each other",
    "verify": "run a script as configured and as plain PyTorch, and name the first thing that differs",
    "checkpoint": "list, verify and compare checkpoints",
    "estimate-memory": "say how much memory a model takes, to load and to train",
    "completion": "print what has a shell complete commands and options",
    "env": "print versions, devices and settings, for a bug report",
}

REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code: 2 if it was refused, 1 if it was empty."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    name, *rest = tokens or ["--help"]
    if name in ("-h", "--help"):
        # like all that follows, imported for those alone who need it: a start is not to wait
        from accel_launch.help_text import program_help

        print(program_help(COMMANDS.items()), end="")
        return 0 if tokens else 1
    if name == "--version":
        print(f"accel-launch {_version()}")
        return 0
    own = name in COMMANDS and name not in EXTRAS
    command = import_module(f"accel_launch.commands.{name}") if own else load_command(name)
    if command is None:
        return _refuse([_no_command(name)])
    try:
        code = command.run(rest)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # whoever read the output has had enough; the interpreter would say so once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except Exception as error:
        from accel_state.errors import AccelError, CannotRun

        if isinstance(error, CannotRun):
            return _refuse(error.reasons)
        if isinstance(error, AccelError):
            return _refuse([str(error)])
        raise
    return int(code)


def _no_command(name: str) -> str:
    extra = EXTRAS.get(name)
    if extra is None:
        return f"there is no command {name!r}{did_you_mean(name, COMMANDS)}; the commands are: {', '.join(COMMANDS)}"
    return (
        f"accel {name} comes with package accel-{extra}, which is not installed for {sys.executable}:"
        f" pip install 'accel[{extra}]'"
    )


def _refuse(reasons: Sequence[str]) -> int:
    if len(reasons) == 1:
        print(f"accel: error: {reasons[0]}", file=sys.stderr, flush=True)
    else:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        print(f"accel: error: {len(reasons)} problems\n{listed}", file=sys.stderr, flush=True)
    return REFUSED


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("accel-launch")
    except PackageNotFoundError:
        return "from a source folder (not installed)"


if __name__ == "__main__":
    sys.exit(main())
