"""Ranks and models for tests of sequences that are divided."""
