"""Config files: accel's own keys and Accelerate's, and which value of an option wins."""
