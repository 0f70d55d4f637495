"""Run the command `accel`."""

from accel_launch.cli.program import main

__all__ = ["main"]
