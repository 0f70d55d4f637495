"""Train in mixed precision, and step optimizers and schedulers if a step is due."""

from accel_amp.forward import AutocastForward, autocast, unwrap_forward, wrap_forward
from accel_amp.local_part import local_part
from accel_amp.optimizer import AcceleratedOptimizer, StepMaker
from accel_amp.policy import PrecisionPolicy
from accel_amp.precisions import PRECISIONS, Precision
from accel_amp.scaler import LossScaler
from accel_amp.scheduler import AcceleratedScheduler
from accel_amp.unprepared_guard import UnpreparedGuard
from accel_amp.window_scaling import WindowScaler

__all__ = [
    "PRECISIONS",
    "AcceleratedOptimizer",
    "AcceleratedScheduler",
    "AutocastForward",
    "LossScaler",
    "Precision",
    "PrecisionPolicy",
    "StepMaker",
    "UnpreparedGuard",
    "WindowScaler",
    "autocast",
    "local_part",
    "unwrap_forward",
    "wrap_forward",
]
