"""Trackers, each in a file; other distributions add theirs by entry points of the group `accel.trackers`."""

from accel_state import Registry

from accel_track.tracker import GeneralTracker

TRACKERS: Registry[type[GeneralTracker]] = Registry(__name__, "accel.trackers", "TRACKER")

__all__ = ["TRACKERS"]
