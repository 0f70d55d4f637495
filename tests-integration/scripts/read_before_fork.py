"""Read the entry points of the environment in the server that forks test workers: once, in place of once in each."""

from accel_state.entry_points import entry_points_of

entry_points_of("accel.devices")
