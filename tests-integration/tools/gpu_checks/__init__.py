"""Checks accel on a GPU, in a few minutes: what can only be seen there, in the order of what it is worth."""
