"""Register the strategies, each in a file."""

from accel_state import Registry

from accel_parallel.strategy import Strategy

STRATEGIES: Registry[type[Strategy]] = Registry(__name__, "accel.strategies", "STRATEGY")

__all__ = ["STRATEGIES"]
