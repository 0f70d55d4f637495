"""How parameters and gradients are spread over processes."""

from accel_parallel.comm_hooks import CommHook
from accel_parallel.rebind import StaleParameters, rebind, refuse_stale, replaced
from accel_parallel.strategies import STRATEGIES
from accel_parallel.strategy import Strategy

__all__ = ["STRATEGIES", "CommHook", "StaleParameters", "Strategy", "rebind", "refuse_stale", "replaced"]
