"""The errors of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final


@final
class RankFailure(Exception):
    """An error of a run in which ranks raised, died, were late or sent a result that cannot be read.

    An exception that does not pickle becomes a RuntimeError with the last line of its traceback. If a rank has failed,
    those that were still running after the grace period are in the text only.

    Args:
        message: Text of the error.
        errors: Exceptions of failed ranks: the rank's own, ChildProcessError if it died, TimeoutError if it was late.
    """

    def __init__(self, message: str, errors: Mapping[int, BaseException]) -> None:
        super().__init__(message)
        self.errors = dict(errors)


@final
class NotSendable(TypeError):
    """An error of a function or an argument that cannot be pickled. No rank has run anything."""
