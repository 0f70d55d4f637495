"""Run programs written for Accelerate on accel as they are, or rewrite them by `accel migrate`."""

from accel_compat.finder import install

__all__ = ["install"]
