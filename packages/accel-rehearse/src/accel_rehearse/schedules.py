"""Find the step at which a schedule of learning rates ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ConstantLR

#: names of torch's schedules, of others, and of functions for their length
_LENGTHS = (
    "total_steps",
    "T_max",
    "total_iters",
    "num_training_steps",
    "max_steps",
    "num_steps",
    "t_total",
)
#: the least change of a rate in a step
_LEAST = 1e-9
#: twice the longest schedule that is looked for
_LONGEST = 1 << 32


def length_of(scheduler: Any) -> int | None:
    """Return after how many of its own steps a schedule ends, or None if it has no end.

    Args:
        scheduler: A scheduler of torch.
    """
    known = vars(scheduler)
    if "_schedulers" in known:
        last = length_of(known["_schedulers"][-1])
        return last and last + max(known.get("_milestones") or [0])
    for rate in known.get("lr_lambdas", [])[:1]:
        return _named(rate.keywords if isinstance(rate, partial) else {}) or _length_of_function(rate)
    # one that rises to the full rate, or only holds it back, begins a training
    begins = isinstance(scheduler, ConstantLR) or known.get("end_factor", 0) >= 1
    return None if begins else _named(known)


def _named(values: dict[str, Any]) -> int | None:
    return next((values[name] for name in _LENGTHS if isinstance(values.get(name), int)), None)


def _length_of_function(rate: Callable[[int], float]) -> int | None:
    """Return from where on a function of steps stays the same."""
    with suppress(Exception):  # a function of the script's, which may know no such step
        last = rate(_LONGEST)
        end = bisect_left(range(_LONGEST), True, key=lambda step: rate(step) == last)
        # no end has a rate that only becomes too small for a float, that goes on to the longest, or that rises
        return end if 0 < end < _LONGEST / 2 and rate(end - 1) - last > _LEAST else None
    return None
