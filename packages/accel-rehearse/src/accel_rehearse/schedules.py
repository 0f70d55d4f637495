"""Find the step at which a schedule of learning rates ends."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any

#: names of torch's schedules, of others, and of functions for their length
_LENGTHS = ("total_steps", "T_max", "total_iters", "num_training_steps", "max_steps", "num_steps", "t_total")
#: the least change of a rate in a step
_LEAST = 1e-9
#: the longest schedule that is looked for, and steps before it at which its rate is compared
_LONGEST, _BEFORE = 1 << 32, [1 << power for power in range(31)]


def length_of(scheduler: Any) -> int | None:
    """Return after how many of its own steps a schedule ends, or None if it has no end.

    Args:
        scheduler: A scheduler of torch.
    """
    parts: list[Any] = vars(scheduler).get("_schedulers", [])
    if parts:
        last = length_of(parts[-1])
        return None if last is None else last + max(vars(scheduler).get("_milestones", [0]))
    for rate in vars(scheduler).get("lr_lambdas", [])[:1]:
        given = (
            rate.keywords if isinstance(rate, partial) else getclosurevars(rate).nonlocals if isfunction(rate) else {}
        )
        return _named_length(given) or _length_of_function(rate)
    return _named_length(vars(scheduler)) or max(vars(scheduler).get("milestones", ()), default=None)


def _named_length(values: Any) -> int | None:
    return next((values[name] for name in _LENGTHS if isinstance(values.get(name), int)), None)


def _length_of_function(rate: Any) -> int | None:
    """Return from where on a function of steps stays the same."""
    low, high = 0, _LONGEST
    with suppress(Exception):  # a function of the script's, which may know no such step
        last = rate(high)
        if any(rate(high - before) != last for before in _BEFORE):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if rate(middle) == last else (middle + 1, high)
        # a rate that only becomes too small for a float has no end
        return low if low and abs(rate(low - 1) - last) > _LEAST else None
    return None
