"""The errors of exchanges between processes."""


class AccelError(Exception):
    """The base of every error that accel raises on purpose."""


class NoRun(AccelError, RuntimeError):
    """The error of code that asks for the current run before a run was started."""


class PeerFailed(AccelError, RuntimeError):
    """The error of a process that waits for the work of another, which has failed or is gone."""


class PeerLost(AccelError, RuntimeError):
    """The error of an exchange that another process has left, or does not enter."""


class CollectiveMismatch(AccelError, RuntimeError):
    """The error of ranks that enter a collective with different calls or data.

    Its message lists the call of each rank.
    """
