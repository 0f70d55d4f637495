"""What accel needs of a kind of device, as checks that makers of hardware run."""
