"""What records hold: the command `accel runs`."""
