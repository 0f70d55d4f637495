"""The precisions, each in a file of its own."""

from accel_state import Registry

from accel_amp.precisions._base import Precision

PRECISIONS: Registry[type[Precision]] = Registry(__name__, "accel.precisions", "PRECISION")

__all__ = ["PRECISIONS", "Precision"]
