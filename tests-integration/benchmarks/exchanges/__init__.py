"""Exchanges between the processes of a group: hand-written, and by each library."""
