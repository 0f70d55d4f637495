"""The error of this package."""


class CheckpointError(RuntimeError):
    """An error of weights or of a checkpoint: they are missing, damaged or do not fit.

    The message names the file and what to do.
    """
