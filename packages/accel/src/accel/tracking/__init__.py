"""The trackers of an Accelerator, and what scripts import to write one of their own."""

from typing import Any

from accel_track import GeneralTracker as GeneralTracker
from accel_track import LoggerType as LoggerType
from accel_track import on_main_process as on_main_process


def __getattr__(name: str) -> Any:
    from accel_names.lazy_names import find

    return find(name, "accel.tracking")
