"""Read the entry points of the environment in the server that forks test workers: once, in place of once in each."""

from accel_state.entry_points import entry_points_of
from accel_testing.cheap_forks import prepare_forks

entry_points_of("accel.devices")
prepare_forks()
