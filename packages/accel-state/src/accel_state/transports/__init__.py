"""Exchange of bytes between the processes of a job."""

from accel_state.transports._base import Reduction, Transport

__all__ = ["Reduction", "Transport"]
