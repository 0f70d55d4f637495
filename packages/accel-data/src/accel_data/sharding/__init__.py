"""Which samples of a map-style dataset a rank gets."""
