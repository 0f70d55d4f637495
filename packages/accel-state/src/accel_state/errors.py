"""The errors of accel that a user can put right, of requests that cannot be met."""

from collections.abc import Sequence

from accel_comm.errors import AccelError


class TopologyError(AccelError, ValueError):
    """The environment does not give the rank of this process, or contradicts itself."""


class RunConflict(AccelError, ValueError):
    """A second request for the run of this process contradicts the first."""


class UnknownName(AccelError, ValueError):
    """No plug-in has the name that was asked for."""


class CannotRun(AccelError, ValueError):
    """The request cannot run here; the error carries every reason, not only the first."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(f"{what}: " + "; ".join(reasons))
