"""`accel migrate`: rewrites programs for Accelerate as programs for accel."""
