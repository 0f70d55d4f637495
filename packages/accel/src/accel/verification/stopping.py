"""Ends a script when enough optimizer steps were made."""

from __future__ import annotations

from typing import final


class Enough(BaseException):
    """The script has made all steps that were asked for; no handler of the script's own should catch it."""


@final
class Limit:
    """Counts optimizer steps, and raises Enough where the loop comes by after the last one."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        #: steps that were asked of optimizers when they were due, and those of them that were skipped
        self.made = 0
        self.skipped = 0
        self.optimizers = 0

    @property
    def reached(self) -> bool:
        """Whether all optimizers together have made `steps` steps each, on average; skipped ones do not count."""
        return self.made - self.skipped >= self.steps * max(self.optimizers, 1)

    def check(self) -> None:
        """Returns while there are steps to make.

        Raises: Enough when there are none.
        """
        if self.reached:
            raise Enough
