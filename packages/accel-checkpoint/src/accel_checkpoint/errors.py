"""The error of this package."""


class CheckpointError(RuntimeError):
    """Weights or a checkpoint are missing, damaged or do not fit. The message names the file and what to do."""
