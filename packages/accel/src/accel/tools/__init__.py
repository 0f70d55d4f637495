"""What stands beside the loop: batch sizes, profiles, progress bars, the test of an installation."""
