"""The memory that tensors pass through on their way to a disk or from it."""
