"""Finds the classes that submit jobs, one for each scheduler, in package accel-submit or another package."""

from importlib.metadata import entry_points
from typing import Any

from accel_state.errors import CannotRun

GROUP = "accel.schedulers"


def load_scheduler(name: str) -> Any:
    """The scheduler of that name, an `accel_submit.Scheduler`.

    Raises: CannotRun if no installed package has it.
    """
    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        missing = "it needs package accel-submit: in a clone of accel, pip install ./packages/accel-submit"
        raise CannotRun(f"accel launch --submit {name}", [f"--submit {name}: {missing}"])
    return point.load()()
