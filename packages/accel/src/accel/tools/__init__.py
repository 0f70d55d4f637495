"""The things beside the loop: batch sizes, profiles, progress bars, and the test of an installation."""
