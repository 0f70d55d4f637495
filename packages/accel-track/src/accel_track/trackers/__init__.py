"""The trackers, each in a file. Other distributions add trackers by entry points of the group `accel.trackers`."""

from accel_state import Registry

from accel_track.tracker import GeneralTracker

TRACKERS: Registry[type[GeneralTracker]] = Registry(__name__, "accel.trackers", "TRACKER")

__all__ = ["TRACKERS"]
