"""Run commands of accel as functions, for programs that read their options with argparse."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from subprocess import CalledProcessError
from typing import Any

import click
from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS
from accel_launch.cli.commands import launch, test
from accel_launch.cli.launch_command import LaunchCommand
from accel_launch.cli.options import OPTIONS
from accel_state import CannotRun


class _Help(argparse.RawDescriptionHelpFormatter):
    """A help in which each option has the spelling with underscores only."""

    def add_argument(self, action: argparse.Action) -> None:
        shown = copy.copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "-" not in flag.lstrip("-")]
        super().add_argument(shown)


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
    more: dict[str, Any] = {"description": about, "allow_abbrev": False, "formatter_class": _Help}
    if subparsers is None:
        return argparse.ArgumentParser(f"accel {command}", **more)
    parser: argparse.ArgumentParser = subparsers.add_parser(command, **more)
    parser.set_defaults(func=run)
    return parser


def command_of(
    name: str, parser: Callable[[], argparse.ArgumentParser], run: Callable[[argparse.Namespace], None]
) -> click.Command:
    """Return a command for `accel`, whose words argparse reads.

    Args:
        name: Name of the command.
        parser: Function that makes the parser of the words.
        run: Function to call with what the parser has read.
    """

    def call(words: tuple[str, ...]) -> None:
        try:
            run(parser().parse_args([*words]))
        except CannotRun:
            raise
        except (OSError, ValueError, RuntimeError, CalledProcessError) as error:
            raise CannotRun(f"accel {name}", [str(error)]) from None

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    reads_all = {"ignore_unknown_options": True, "allow_interspersed_args": True, "help_option_names": []}
    return click.Command(name, reads_all, call, [words], add_help_option=False)


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser with the options of `accel launch`, the script, and what follows the script."""
    parser = parser_of("launch", launch.EPILOG.replace("\b\n", ""), launch_command, subparsers)
    for option in OPTIONS:
        if option.is_flag:
            parser.add_argument(*_spellings(option.opts), dest=option.name, action="store_const", const=True)
            if option.secondary_opts:
                parser.add_argument(
                    *_spellings(option.secondary_opts), dest=option.name, action="store_const", const=False
                )
        else:
            parser.add_argument(*_spellings(option.opts), dest=option.name, type=_reader(option))
    for other in ACCELERATE_OPTIONS:
        action = {"action": "store_true"} if other.is_flag else {}
        parser.add_argument(*_spellings(other.opts), dest=other.flag.lstrip("-"), help=argparse.SUPPRESS, **action)  # type: ignore[arg-type]
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _spellings(flags: list[str]) -> list[str]:
    dashed = [f"--{flag[2:].replace('_', '-')}" for flag in flags if flag.startswith("--")]
    return list(dict.fromkeys([*flags, *dashed]))


def _reader(option: click.Option) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            return option.type.convert(word, None, None)
        except click.BadParameter as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


def launch_command(args: argparse.Namespace) -> None:
    """Launch a script as `accel launch` does, and return when the job has ended well.

    Args:
        args: Options that a parser of `launch_command_parser` has read.

    Raises:
        SystemExit: The job has failed. The code is that of its exit.
        CannotRun: Nothing was started. The message lists every reason.
    """
    words: list[str] = []
    for option in OPTIONS:
        value = getattr(args, str(option.name), None)
        if value is not None:
            words += option.words(value)
    for other in ACCELERATE_OPTIONS:
        value = getattr(args, other.flag.lstrip("-"), None)
        if value:
            words += [other.flag] if other.is_flag else [other.flag, value]
    _finish(_LAUNCH, [*words, args.training_script, *args.training_script_args])


#: `accel launch`, except that one process of a script does not take the place of this one, which goes on afterwards
_LAUNCH = LaunchCommand("launch", partial(launch.run, stays=True), words="SCRIPT [arguments of the script]", help="")


def check_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a parser of the config file by which `accel test` starts its check."""
    parser = parser_of("test", "Checks that processes find each other.", check_command, subparsers)
    parser.add_argument("--config_file")
    return parser


def check_command(args: argparse.Namespace) -> None:
    """Check this machine as `accel test` does.

    Args:
        args: What `check_command_parser` has read.

    Raises:
        SystemExit: The check has failed.
        CannotRun: Nothing was started. The message lists every reason.
    """
    _finish(test.COMMAND, [] if args.config_file is None else ["--config_file", args.config_file])


def _finish(command: click.Command, words: list[str]) -> None:
    code = command.main(words, prog_name=f"accel {command.name}", standalone_mode=False)
    if code:
        raise SystemExit(code)
