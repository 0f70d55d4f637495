"""Who is measured: hand-written PyTorch, accel, Accelerate."""
