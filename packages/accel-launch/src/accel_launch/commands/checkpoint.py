"""`accel checkpoint`: lists, verifies and compares checkpoints."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from accel_launch.help_text import checkpoint_help

PATHS = {"ls": 1, "verify": 1, "diff": 2}


def run(tokens: Sequence[str]) -> int:
    """Exit code 0 if all is well, 1 if something is damaged or differs.

    Raises: CannotRun with every reason why there is nothing to look at.
    """
    if not tokens or "-h" in tokens or "--help" in tokens:
        print(checkpoint_help(), end="")
        return 0 if tokens else 1
    from accel_state.errors import CannotRun

    name, *paths = tokens
    problems = []
    if name not in PATHS:
        problems.append(f"there is no command {name!r}; the commands are: {', '.join(PATHS)}")
    elif len(paths) != PATHS[name] or any(one.startswith("-") for one in paths):
        problems.append(f"{name} takes {PATHS[name]} path(s), found {' '.join(paths) or 'none'}")
    if find_spec("accel_checkpoint") is None:
        problems.append(f"package accel-checkpoint is not installed for {sys.executable}: pip install accel-checkpoint")
    if problems:
        raise CannotRun("accel checkpoint", problems)
    from accel_checkpoint import CheckpointError
    from accel_checkpoint.inspect import run as inspect

    try:
        return inspect(name, paths)
    except CheckpointError as error:
        raise CannotRun("accel checkpoint", [str(error)]) from None
