"""Choose the samples of a map-style dataset that a rank gets."""
