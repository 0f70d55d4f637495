"""Run the command `accel`: find the subcommand, and turn its refusals into words and exit codes."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from accel_comm.errors import AccelError
from accel_state.errors import CannotRun

from accel_launch.cli.suggest import did_you_mean

#: the commands of this project, whose modules are imported when they are called
COMMANDS = {
    "config": "write, update and show the file of settings",
    "launch": "start a script on one or many processes",
    "test": "check that processes on this machine find each other",
    "verify": "run a script as configured and as plain PyTorch, and name the first thing that differs",
    "chaos": "run a script with faults, and say whether it recovers correctly",
    "checkpoint": "list and verify checkpoints",
    "rehearse": "run a script as one rank of many, without the others: will it fit, how long, and is it right",
    "estimate-memory": "say how much memory a model takes, to load and to train",
    "runs": "list, show, compare and draw the records of runs",
    "migrate": "rewrite programs, scripts and config files for Accelerate",
    "merge-weights": "write the weights of a sharded checkpoint as one whole",
    "to-fsdp2": "convert a config file of Accelerate for FSDP1 to FSDP2",
    "tpu-config": "run commands on all machines of a TPU pod",
    "env": "print versions, devices and settings, for a bug report",
}
#: those of them that other packages of this project bring, and the extra of package accel that installs each
EXTRAS = {
    "verify": "verify",
    "chaos": "chaos",
    "rehearse": "rehearse",
    "estimate-memory": "big",
    "runs": "track",
    "migrate": "compat",
    "merge-weights": "names",
    "to-fsdp2": "names",
    "tpu-config": "names",
}
#: a shell asks for completions by _ACCEL_COMPLETE, click's variable for a program of this name
PROGRAM = "accel"
REFUSED = 2


class Program(click.Group):
    """The commands of this project, and the commands that other packages add.

    Each entry point of the group `accel.commands` names a click command.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(dict.fromkeys([*COMMANDS, *_plugins()]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or None for completion if there is no such command.

        Raises:
            click.UsageError: There is no such command. The error has the package that brings it, or the nearest
            command.
        """
        command: click.Command
        if cmd_name in COMMANDS and cmd_name not in EXTRAS:
            command = import_module(f"accel_launch.cli.commands.{cmd_name}").COMMAND
            return command
        plugins = _plugins()
        if cmd_name in plugins:
            command = plugins[cmd_name].load()
            return command
        if ctx.resilient_parsing:
            return None
        if cmd_name in EXTRAS:
            package = f"accel-{EXTRAS[cmd_name]}"
            raise click.UsageError(
                f"accel {cmd_name} comes with package {package}, which is not installed for {sys.executable}: in"
                f" a clone of accel, pip install ./packages/{package}"
            )
        names = self.list_commands(ctx)
        raise click.UsageError(
            f"there is no command {cmd_name!r}{did_you_mean(cmd_name, names)}; the commands are: {', '.join(names)}"
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add a line of help for each command, without importing our commands."""
        others = {name: point.load().get_short_help_str() for name, point in _plugins().items() if name not in COMMANDS}
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *others.items()])


def _plugins() -> dict[str, Any]:
    """Return the entry points of the commands of other packages, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="accel.commands")}


ACCEL = Program(
    PROGRAM,
    help="Starts PyTorch training scripts on one or many processes.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
click.version_option(package_name="accel-launch", message="%(prog)s %(version)s")(ACCEL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 2 if it was refused, 1 if it was empty."""
    try:
        return int(ACCEL.main(arguments, PROGRAM, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 1
    except click.ClickException as error:
        return _refuse([error.format_message()])
    except (KeyboardInterrupt, click.Abort):
        return 130
    except AccelError as error:
        return _refuse(error.reasons if isinstance(error, CannotRun) else [str(error)])


def _refuse(reasons: Sequence[str]) -> int:
    words = reasons[0] if len(reasons) == 1 else "\n  - ".join([f"{len(reasons)} problems", *reasons])
    print(f"accel: error: {words}", file=sys.stderr, flush=True)
    return REFUSED
