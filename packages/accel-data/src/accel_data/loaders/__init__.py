"""The DataLoaders that serve one rank."""
