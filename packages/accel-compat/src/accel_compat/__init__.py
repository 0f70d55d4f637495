"""Programs written for Accelerate run on accel as they are, or are rewritten by `accel migrate`."""

from accel_compat.finder import install

__all__ = ["install"]
