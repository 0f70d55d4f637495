"""Record runs: by trackers, and in a folder for each run."""

from accel_track.logger_type import LoggerType
from accel_track.tracker import GeneralTracker, on_main_process
from accel_track.trackers import TRACKERS

__all__ = ["TRACKERS", "GeneralTracker", "LoggerType", "on_main_process"]
