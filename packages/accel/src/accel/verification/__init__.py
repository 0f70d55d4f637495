"""`accel verify`: runs a script as configured, then as plain PyTorch, and finds the first thing that differs."""
