"""How parameters and gradients are spread over processes."""

from accel_parallel.comm_hooks import CommHook
from accel_parallel.engine import Engine
from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.parallelism_config import ParallelismConfig
from accel_parallel.rebind import StaleParameters, rebind, refuse_stale, replaced
from accel_parallel.strategies import STRATEGIES
from accel_parallel.strategy import Strategy
from accel_parallel.wrap_policy import like_blocks

__all__ = [
    "STRATEGIES",
    "CommHook",
    "Engine",
    "FullyShardedDataParallelPlugin",
    "ParallelismConfig",
    "StaleParameters",
    "Strategy",
    "like_blocks",
    "rebind",
    "refuse_stale",
    "replaced",
]
