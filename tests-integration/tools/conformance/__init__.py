"""Check, for makers of hardware, that a kind of device does what accel needs."""
