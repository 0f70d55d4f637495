"""The prepared optimizer, under the path that scripts import it from."""

from accel_amp import AcceleratedOptimizer as AcceleratedOptimizer
