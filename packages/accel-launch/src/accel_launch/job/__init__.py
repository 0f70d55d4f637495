"""What starts where: processes, their commands and environments."""
