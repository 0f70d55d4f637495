"""Exchange of bytes between the processes of a job."""

from accel_comm.transports._base import Join, PointToPoint, Reduction, Transport, longest_of

__all__ = ["Join", "PointToPoint", "Reduction", "Transport", "longest_of"]
