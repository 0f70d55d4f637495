"""Give names of Accelerate to package accel, which reaches each of them when a script asks for it."""
