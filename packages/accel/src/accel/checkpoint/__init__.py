"""Saves all that training goes on from, and loads it."""
