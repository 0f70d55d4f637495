"""The folder for checkpoints in memory, from its start to its end."""
