"""The calls of a loop between a batch and the next."""
