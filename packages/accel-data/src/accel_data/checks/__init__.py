"""Whether all ranks hold the same dataset."""
