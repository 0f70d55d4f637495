"""The error of this package."""


class CheckpointError(RuntimeError):
    """Weights on disk are missing, damaged or do not fit; the message names the file and what to do."""
