"""Rewrite programs, scripts and config files for Accelerate, for `accel migrate`."""
