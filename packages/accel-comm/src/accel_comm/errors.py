"""The errors of accel that a user can put right, of exchanges between processes."""


class AccelError(Exception):
    """Base of every error that accel raises on purpose."""


class NoRun(AccelError, RuntimeError):
    """Code asked for the current run before a run was started."""


class PeerFailed(AccelError, RuntimeError):
    """Another process failed inside a block that this process was waiting for."""


class PeerLost(AccelError, RuntimeError):
    """Another process is gone, or did not come, in the middle of an exchange."""


class CollectiveMismatch(AccelError, RuntimeError):
    """Ranks entered a collective with calls or data that do not fit together; the message lists each rank's call."""
