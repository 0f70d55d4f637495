"""Run the processes of one machine: start, signals, the first failure, the end of all, restarts."""
