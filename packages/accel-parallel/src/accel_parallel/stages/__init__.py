"""Recompute activations and divide layers of models, before these are sharded."""
