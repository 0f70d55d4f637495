"""The launcher as a function, for programs that read its options with argparse."""

from __future__ import annotations

import argparse
from typing import Any

from accel_launch.cli.commands.launch import COMMAND
from accel_launch.cli.options import OPTIONS


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """A parser with the options of `accel launch`, the script, and what follows the script."""
    about = "Starts a script on one or many processes."
    parser: argparse.ArgumentParser
    if subparsers is None:
        parser = argparse.ArgumentParser("accel launch", description=about, allow_abbrev=False)
    else:
        parser = subparsers.add_parser("launch", description=about, allow_abbrev=False)
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
    if subparsers is not None:
        parser.set_defaults(func=launch_command)
    return parser


def _spellings(flags: list[str]) -> list[str]:
    dashed = [f"--{flag[2:].replace('_', '-')}" for flag in flags if flag.startswith("--")]
    return list(dict.fromkeys([*flags, *dashed]))


def launch_command(args: argparse.Namespace) -> None:
    """Launches as `accel launch` does, by what the parser has read, and ends with the exit code of the job.

    Raises: SystemExit; CannotRun with every reason why nothing was started.
    """
    words: list[str] = []
    for option in OPTIONS:
        value = getattr(args, str(option.name), None)
        if value is not None:
            words += option.words(value)
    words += [args.training_script, *args.training_script_args]
    raise SystemExit(COMMAND.main(words, prog_name="accel launch", standalone_mode=False))
