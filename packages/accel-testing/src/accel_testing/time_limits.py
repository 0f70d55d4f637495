"""Multiply the limits of time in tests, for machines that are slow or have other work."""

from __future__ import annotations

import os

VARIABLE = "ACCEL_TESTING_TIME_FACTOR"
#: the factors that are taken; 1 is the default
LEAST, MOST = 1.0, 1000.0


def stretched(seconds: float) -> float:
    """Return a limit of time, multiplied by `ACCEL_TESTING_TIME_FACTOR` of the environment.

    Units:
        Seconds.

    Raises:
        ValueError: The variable is no number from 1 to 1000.
    """
    text = os.environ.get(VARIABLE) or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not LEAST <= factor <= MOST:
        raise ValueError(f"{VARIABLE}={text!r}: expected a number from {LEAST:g} to {MOST:g}, such as 4, or unset it")
    return seconds * factor
