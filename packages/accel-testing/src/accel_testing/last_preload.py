"""Prepare the forks of the fork server of pools, which imports this module last, as it calls nothing."""

from accel_testing.cheap_forks import prepare_forks

prepare_forks()
