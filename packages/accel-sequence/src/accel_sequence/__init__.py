"""Divide sequences over ranks: by heads inside of attention, over a ring, and both."""

from accel_sequence.attention import attention
from accel_sequence.division import CannotDivide
from accel_sequence.loss import loss, part, total, whole
from accel_sequence.positions import positions

__all__ = ["CannotDivide", "attention", "loss", "part", "positions", "total", "whole"]
