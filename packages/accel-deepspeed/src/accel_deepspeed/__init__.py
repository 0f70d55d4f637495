"""Train by DeepSpeed's engine as a strategy: its options, the stand-ins for what its config makes, and the engine."""

from accel_deepspeed.plugin import DeepSpeedPlugin
from accel_deepspeed.stand_ins import DummyOptim, DummyScheduler

__all__ = ["DeepSpeedPlugin", "DummyOptim", "DummyScheduler"]
