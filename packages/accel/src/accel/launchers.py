"""The functions that start processes, under the path that scripts import them from."""

from accel_launch import debug_launcher as debug_launcher
from accel_launch import notebook_launcher as notebook_launcher
