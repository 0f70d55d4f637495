"""Give scripts what they import for DeepSpeed, or classes that nobody can make if accel-deepspeed is not installed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from accel_parallel.choice import DEEPSPEED, INSTALLS
from accel_state import CannotRun


def _stand_in(name: str) -> type:
    """Return a class that cannot be made, since scripts import it at their top whether they use it or not."""

    def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        raise CannotRun(name, [f"it comes with package accel-deepspeed, which is not installed: {INSTALLS[DEEPSPEED]}"])

    return type(name, (), {"__init__": refuse})


if TYPE_CHECKING or find_spec("accel_deepspeed") is not None:
    from accel_deepspeed import DeepSpeedPlugin, DummyOptim, DummyScheduler
    from accel_deepspeed.config_queries import HfDeepSpeedConfig
else:
    _NAMES = ("DeepSpeedPlugin", "DummyOptim", "DummyScheduler", "HfDeepSpeedConfig")
    DeepSpeedPlugin, DummyOptim, DummyScheduler, HfDeepSpeedConfig = map(_stand_in, _NAMES)


class DeepSpeedSchedulerWrapper:
    """A class without objects: under DeepSpeed, too, `prepare` returns schedulers of class `AcceleratedScheduler`."""


__all__ = ["DeepSpeedPlugin", "DeepSpeedSchedulerWrapper", "DummyOptim", "DummyScheduler", "HfDeepSpeedConfig"]
