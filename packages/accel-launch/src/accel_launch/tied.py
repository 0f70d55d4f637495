"""Runs a command that dies with the process that started it: `python -m accel_launch.tied PARENT COMMAND ...`."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from accel_launch.lifeline import die_with_parent

#: what a shell ends with when it cannot start a command
CANNOT_START = 127


def become_tied(parent: int, command: Sequence[str]) -> NoReturn:
    """Replaces this process by a command that is killed when process `parent` ends."""
    die_with_parent(parent)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these two, and what is ignored stays so in the next program.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"accel: {command[0]} could not be started: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT_START)


if __name__ == "__main__":
    become_tied(int(sys.argv[1]), sys.argv[2:])
