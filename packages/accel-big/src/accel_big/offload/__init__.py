"""Keep weights that are not on the device in memory of the host, or in their files."""
