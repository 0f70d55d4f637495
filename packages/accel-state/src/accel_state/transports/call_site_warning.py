"""Warns where ranks call the same from different lines, which may be two calls that have met."""

from __future__ import annotations

import logging
from typing import final

logger = logging.getLogger("accel")


@final
class CallSiteWarning:
    """Says it once of each, on rank 0."""

    def __init__(self, rank: int) -> None:
        self._rank, self._told = rank, set[str]()

    def warn(self, calls: str | None) -> None:
        """Says that ranks make these calls, one line for each rank; None is nothing to say."""
        if calls is not None and calls not in self._told:
            self._told.add(calls)
            if self._rank == 0:
                logger.warning(
                    "ranks call the same from different lines; if that is not meant, look for a call inside an `if`, or"
                    " after a `break`:%s",
                    calls,
                )
