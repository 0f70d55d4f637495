"""Find the classes that submit jobs, each for a scheduler, in package accel-submit or another package."""

from typing import Any

from accel_state.errors import CannotRun

GROUP = "accel.schedulers"
#: the schedulers that package accel-submit brings
BROUGHT = ("slurm", "sagemaker", "kubernetes")


def scheduler_names() -> tuple[str, ...]:
    """Return the names of the schedulers of accel-submit, and of other installed packages."""
    from importlib.metadata import entry_points  # imported only by a launch that submits, or completes its words

    return tuple(dict.fromkeys([*BROUGHT, *sorted(point.name for point in entry_points(group=GROUP))]))


def load_scheduler(name: str) -> Any:
    """Return the scheduler of a name, an `accel_submit.Scheduler`.

    Raises:
        CannotRun: No installed package has it.
    """
    from importlib.metadata import entry_points

    point = next(iter(entry_points(group=GROUP, name=name)), None)
    if point is None:
        raise CannotRun(
            f"accel launch --submit {name}",
            [
                f"--submit {name}: it needs package accel-submit: in a clone of accel, pip install"
                " ./packages/accel-submit"
            ],
        )
    return point.load()()
