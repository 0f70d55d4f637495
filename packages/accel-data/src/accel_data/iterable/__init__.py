"""How streams are read, by which rank and from which source."""
