"""The errors of requests that cannot be met."""

from collections.abc import Sequence

from accel_comm.errors import AccelError


class TopologyError(AccelError, ValueError):
    """The error of an environment that does not give the rank of this process, or contradicts itself."""


class RunConflict(AccelError, ValueError):
    """The error of a request for the run of this process that contradicts an earlier one."""


class UnknownName(AccelError, ValueError):
    """The error of a name that no plug-in has."""


class CannotRun(AccelError, ValueError):
    """The error of a request that cannot run here.

    Args:
        what: The request.
        reasons: All reasons, not only the first.
    """

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(f"{what}: " + "; ".join(reasons))
