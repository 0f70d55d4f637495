"""Read and write config files with accel's own keys and Accelerate's, and find which value of an option wins."""
