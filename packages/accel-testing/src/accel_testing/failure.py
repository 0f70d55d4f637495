"""The two errors of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final


@final
class RankFailure(Exception):
    """Ranks of a pool raised, died or were late: `errors` has one exception for each of those ranks and no other.

    A rank that raised has its own exception (a RuntimeError with its text when that exception cannot cross the pipe),
    a rank that died a ChildProcessError, a late rank a TimeoutError.  A rank that was only waiting for a failed one
    is in the text and not in `errors`.
    """

    def __init__(self, message: str, errors: Mapping[int, BaseException]) -> None:
        super().__init__(message)
        self.errors = dict(errors)


@final
class NotSendable(TypeError):
    """A function or an argument cannot be pickled, so no rank was asked to run anything."""
