"""Run `accel checkpoint`, which lists and verifies checkpoints."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

HELP = """What is in a checkpoint of accel, and whether it is whole. Needs package accel-checkpoint. Runs no code from
the files."""
EPILOG = "exit codes: 0 if all is well; 1 if verify finds damage; 2 if there is nothing to see."


def _report(name: str, path: str) -> int:
    """Return 0 if all is well and 1 if something is damaged. Raise CannotRun if nothing is there."""
    from accel_state.errors import CannotRun

    if find_spec("accel_checkpoint") is None:
        raise CannotRun(
            "accel checkpoint",
            [
                f"package accel-checkpoint is not installed for {sys.executable}: in a clone of accel, pip install"
                " ./packages/accel-checkpoint"
            ],
        )
    from accel_checkpoint import CheckpointError
    from accel_checkpoint.inspect import run as inspect

    from accel_launch.memory.rescue import in_memory_of

    try:
        return inspect(name, Path(path), [*in_memory_of(Path(path))])
    except CheckpointError as error:
        raise CannotRun("accel checkpoint", [str(error)]) from None


def _command(name: str, about: str) -> click.Command:
    return click.Command(name, params=[click.Argument(["path"])], callback=partial(_report, name), help=about)


COMMAND = click.Group(
    "checkpoint",
    help=HELP,
    epilog=EPILOG,
    commands=[
        _command("ls", "List the checkpoints in a folder and in memory, or the files and the state of a checkpoint."),
        _command(
            "verify",
            "Read every file of a checkpoint, or of all in a folder, and compare it with the manifest.",
        ),
    ],
)
