"""Run jobs of many machines."""
