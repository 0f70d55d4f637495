"""The prepared scheduler, under the path that scripts import it from."""

from accel_amp import AcceleratedScheduler as AcceleratedScheduler
