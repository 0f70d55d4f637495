"""Answer the names of Accelerate for package accel, which reaches each of them when a script asks for it."""
