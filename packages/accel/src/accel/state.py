"""The views of the run, under the path that scripts import them from."""

from accel_names.gradient_state import GradientState
from accel_state import AcceleratorState, DistributedType, PartialState, is_initialized

__all__ = ["AcceleratorState", "DistributedType", "GradientState", "PartialState", "is_initialized"]
