"""Run commands of accel as functions, for programs that read their options with argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from accel_launch.cli.commands.launch import COMMAND
from accel_launch.cli.options import OPTIONS


def parser_of(
    command: str, about: str, run: Callable[[argparse.Namespace], None], subparsers: Any
) -> argparse.ArgumentParser:
    """Return a new parser for a command, to which the caller adds options.

    Args:
        command: Name of the command, such as "launch".
        about: Description in the help.
        run: Function that a subcommand's parsed arguments get as `func`.
        subparsers: Return value of `add_subparsers` to add the command to; None makes a parser of its own.
    """
    if subparsers is None:
        return argparse.ArgumentParser(f"accel {command}", description=about, allow_abbrev=False)
    parser: argparse.ArgumentParser = subparsers.add_parser(command, description=about, allow_abbrev=False)
    parser.set_defaults(func=run)
    return parser


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser with the options of `accel launch`, the script, and what follows the script."""
    parser = parser_of("launch", "Starts a script on one or many processes.", launch_command, subparsers)
    for option in OPTIONS:
        for flags, value in ((option.opts, True), (option.secondary_opts, False)):
            if not flags:
                continue
            if option.is_flag:
                parser.add_argument(*_spellings(flags), dest=option.name, action="store_const", const=value)
            else:
                parser.add_argument(*_spellings(flags), dest=option.name, default=None)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _spellings(flags: list[str]) -> list[str]:
    dashed = [f"--{flag[2:].replace('_', '-')}" for flag in flags if flag.startswith("--")]
    return list(dict.fromkeys([*flags, *dashed]))


def launch_command(args: argparse.Namespace) -> None:
    """Launch a script as `accel launch` does, and end this process with the exit code of the job.

    A job of one process takes the place of this process.

    Args:
        args: Options that a parser of `launch_command_parser` has read.

    Raises:
        SystemExit: The job has ended.
        CannotRun: Nothing was started. The message lists every reason.
    """
    words: list[str] = []
    for option in OPTIONS:
        value = getattr(args, str(option.name), None)
        if value is not None:
            words += option.words(value)
    words += [args.training_script, *args.training_script_args]
    raise SystemExit(COMMAND.main(words, prog_name="accel launch", standalone_mode=False))
