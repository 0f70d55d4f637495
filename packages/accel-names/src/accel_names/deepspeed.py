"""Give scripts what they import for DeepSpeed, or classes that nobody can make if accel-deepspeed is not installed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from accel_parallel.choice import DEEPSPEED, INSTALLS
from accel_state import AcceleratorState

from accel_names.lazy_names import stand_in

if TYPE_CHECKING or find_spec("accel_deepspeed") is not None:
    from accel_deepspeed import DeepSpeedPlugin, DummyOptim, DummyScheduler
    from accel_deepspeed.config_queries import HfDeepSpeedConfig
else:
    _NAMES = ("DeepSpeedPlugin", "DummyOptim", "DummyScheduler", "HfDeepSpeedConfig")
    _ABSENT = f"it comes with package accel-deepspeed, which is not installed: {INSTALLS[DEEPSPEED]}"
    DeepSpeedPlugin, DummyOptim, DummyScheduler, HfDeepSpeedConfig = (stand_in(name, _ABSENT) for name in _NAMES)


class DeepSpeedSchedulerWrapper:
    """A class without objects: under DeepSpeed, too, `prepare` returns schedulers of class `AcceleratedScheduler`."""


def get_active_deepspeed_plugin(state: AcceleratorState) -> DeepSpeedPlugin:
    """Return the options by which DeepSpeed's engine trains.

    Raises:
        ValueError: No Accelerator trains by it.
    """
    plugin: DeepSpeedPlugin | None = state.deepspeed_plugin
    if plugin is None:
        raise ValueError("no Accelerator trains by DeepSpeed: give deepspeed_plugin=DeepSpeedPlugin(...)")
    return plugin


__all__ = [
    "DeepSpeedPlugin",
    "DeepSpeedSchedulerWrapper",
    "DummyOptim",
    "DummyScheduler",
    "HfDeepSpeedConfig",
    "get_active_deepspeed_plugin",
]
