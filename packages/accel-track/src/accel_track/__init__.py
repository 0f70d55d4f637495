"""Every run leaves a record: trackers, and the record in a folder."""

from accel_track.logger_type import LoggerType
from accel_track.tracker import GeneralTracker, on_main_process
from accel_track.trackers import TRACKERS

__all__ = ["TRACKERS", "GeneralTracker", "LoggerType", "on_main_process"]
