"""Why a job failed: the root cause among several failures, and the last words."""
