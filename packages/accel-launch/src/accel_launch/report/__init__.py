"""Find out why a job ended, and say it in words."""
