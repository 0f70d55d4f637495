"""The path of `prepare_pippy` in Accelerate, which says what to do in its place."""

from accel_names.lazy_names import door

__getattr__, __dir__ = door("accel.inference", "")
