"""The errors of accel that a user can put right."""

from collections.abc import Sequence


class AccelError(Exception):
    """Base of every error that accel raises on purpose."""


class TopologyError(AccelError, ValueError):
    """The environment does not give the rank of this process, or contradicts itself."""


class NoRun(AccelError, RuntimeError):
    """Code asked for the current run before a run was started."""


class RunConflict(AccelError, ValueError):
    """A second request for the run of this process contradicts the first."""


class UnknownName(AccelError, ValueError):
    """No plug-in has the name that was asked for."""


class PeerFailed(AccelError, RuntimeError):
    """Another process failed inside a block that this process was waiting for."""


class PeerLost(AccelError, RuntimeError):
    """Another process is gone, or did not come, in the middle of an exchange."""


class CollectiveMismatch(AccelError, RuntimeError):
    """Ranks entered a collective with calls or data that do not fit together; the message lists each rank's call."""


class CannotRun(AccelError, ValueError):
    """The request cannot run here; the error carries every reason, not only the first."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(f"{what}: " + "; ".join(reasons))
