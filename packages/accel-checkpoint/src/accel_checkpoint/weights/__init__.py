"""Weights of models in files: their sizes, their division into files, and their reading by parts."""
