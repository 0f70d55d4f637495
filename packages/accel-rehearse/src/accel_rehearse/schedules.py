"""Find the step at which a schedule of learning rates ends."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import lr_scheduler as schedules

#: names by which functions of a schedule know its length
_LENGTHS = ("num_training_steps", "total_steps", "max_steps", "num_steps", "t_total")
#: attributes of torch's schedules with their length
_ATTRIBUTES = {
    schedules.OneCycleLR: "total_steps",
    schedules.CosineAnnealingLR: "T_max",
    schedules.LinearLR: "total_iters",
    schedules.ConstantLR: "total_iters",
    schedules.PolynomialLR: "total_iters",
}
#: the longest schedule that is looked for
_LONGEST = 1 << 32


def length_of(scheduler: Any) -> int | None:
    """Return after how many of its own steps a schedule ends, or None if it has no end.

    Args:
        scheduler: A scheduler of torch.
    """
    for kind, name in _ATTRIBUTES.items():
        if isinstance(scheduler, kind):
            return int(getattr(scheduler, name))
    if isinstance(scheduler, schedules.MultiStepLR):
        return max(scheduler.milestones, default=None)
    if isinstance(scheduler, schedules.SequentialLR):
        last = length_of(scheduler._schedulers[-1])
        return None if last is None else scheduler._milestones[-1] + last
    if isinstance(scheduler, schedules.ChainedScheduler):
        return max(filter(None, map(length_of, scheduler._schedulers)), default=None)
    if isinstance(scheduler, schedules.LambdaLR):
        return _length_of_function(scheduler.lr_lambdas[0])
    return None


def _length_of_function(rate: Any) -> int | None:
    """Return from where on a function of steps stays the same, or the length that it was given."""
    given = dict(rate.keywords) if isinstance(rate, partial) else {}
    code = getattr(rate, "__code__", None)
    if code is not None and rate.__closure__:
        given.update(
            (name, cell.cell_contents) for name, cell in zip(code.co_freevars, rate.__closure__, strict=True)
        )
    for name in _LENGTHS:
        if isinstance(given.get(name), int):
            return int(given[name])
    try:
        last = rate(_LONGEST)
        if any(rate(_LONGEST - (1 << power)) != last for power in range(31)):
            return None
        low, high = 0, _LONGEST
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if rate(middle) == last else (middle + 1, high)
    except Exception:  # noqa: BLE001 - a function of the script's, which may know no such step
        return None
    return low or None
