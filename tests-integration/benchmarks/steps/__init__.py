"""Whole training steps of a tiny model: hand-written, and by each library."""
