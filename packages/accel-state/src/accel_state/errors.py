"""The errors that accel raises for what a user can put right."""

from collections.abc import Sequence


class AccelError(Exception):
    """Base of every error that accel raises on purpose."""


class TopologyError(AccelError, ValueError):
    """The environment does not say who this process is, or contradicts itself."""


class NoRun(AccelError, RuntimeError):
    """The current run was asked for before anything had started one."""


class RunConflict(AccelError, ValueError):
    """A second request for the run of this process contradicts the first."""


class UnknownName(AccelError, ValueError):
    """No plug-in has the name that was asked for."""


class PeerFailed(AccelError, RuntimeError):
    """Another process failed inside a block that this one was waiting for."""


class PeerLost(AccelError, RuntimeError):
    """Another process is gone, or did not come, in the middle of an exchange."""


class CollectiveMismatch(AccelError, RuntimeError):
    """Ranks entered one collective call with what does not fit together; the message has each rank's."""


class CannotRun(AccelError, ValueError):
    """What was asked for cannot run here; carries every reason, not only the first."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.what = what
        self.reasons = tuple(reasons)
        super().__init__(f"{what}: " + "; ".join(reasons))
