"""The plan of a job: processes, their commands and environments."""
