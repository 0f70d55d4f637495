"""Find the classes that submit jobs, each for a scheduler, in package accel-submit or another package."""

from typing import Any

from accel_state.errors import CannotRun

from accel_launch.cli.suggest import did_you_mean

GROUP = "accel.schedulers"
#: the schedulers that package accel-submit brings
BROUGHT = ("slurm", "sagemaker", "kubernetes")


def load_scheduler(name: str) -> Any:
    """Return the scheduler of a name, an `accel_submit.Scheduler`. No other scheduler is imported.

    Raises:
        CannotRun: No installed package has it. The error has the nearest name.
    """
    from importlib.metadata import entry_points  # imported only by a launch that submits

    points = {point.name: point for point in entry_points(group=GROUP)}
    if name in points:
        return points[name].load()()
    names = [*dict.fromkeys([*BROUGHT, *sorted(points)])]
    why = f"there is no such scheduler{did_you_mean(name, names)}; the schedulers are: {', '.join(names)}"
    if name in BROUGHT:
        why = "it needs package accel-submit: in a clone of accel, pip install ./packages/accel-submit"
    raise CannotRun("accel launch", [f"--submit {name}: {why}"])
