"""Run a training script with faults, and say whether it recovered correctly."""
