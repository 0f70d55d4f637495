"""Read the records of runs, in Python and by the command `accel runs`."""

from accel_runs.recorded_run import RecordedRun, find_run, find_runs

__all__ = ["RecordedRun", "find_run", "find_runs"]
