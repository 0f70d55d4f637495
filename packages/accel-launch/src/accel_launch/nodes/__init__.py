"""Jobs of many machines."""
