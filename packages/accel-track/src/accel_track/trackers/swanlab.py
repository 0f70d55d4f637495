"""A tracker for SwanLab."""

from typing import final

from accel_track.wandb_interface import WandbInterface


@final
class SwanlabTracker(WandbInterface):
    """A run of the project in SwanLab. Its other arguments go to `swanlab.init`."""

    name = "swanlab"
    in_thread = False  # its finish puts handlers of signals back, which only the main thread may


TRACKER = SwanlabTracker
