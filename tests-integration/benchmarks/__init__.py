"""Measures what accel costs beside hand-written PyTorch and Accelerate; README.md says how to run and read it."""
