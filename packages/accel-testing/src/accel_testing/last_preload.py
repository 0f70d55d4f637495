"""What the fork server of pools imports last, as it calls nothing: this prepares its forks."""

from accel_testing.cheap_forks import prepare_forks

prepare_forks()
