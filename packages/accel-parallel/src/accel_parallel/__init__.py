"""How parameters and gradients are spread over processes."""

from accel_parallel.comm_hooks import CommHook
from accel_parallel.empty_weights import init_empty_weights, init_on_device
from accel_parallel.engine import Engine
from accel_parallel.engine_options import Asked, EngineOptions
from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.invariants import BrokenInvariant, refuse_renormalised, refuse_strangers
from accel_parallel.parallelism_config import ParallelismConfig
from accel_parallel.rebind import (
    StaleParameters,
    follow,
    rebind,
    refuse_replaced,
    refuse_stale,
    replaced,
    tie_again,
)
from accel_parallel.sharded.loaded_state import divide_loaded_state
from accel_parallel.sharded.second_graph import refuse_second_graph
from accel_parallel.stages.recompute import recompute
from accel_parallel.strategies import STRATEGIES
from accel_parallel.strategy import Strategy
from accel_parallel.wrap_policy import like_blocks, outermost

__all__ = [
    "STRATEGIES",
    "Asked",
    "BrokenInvariant",
    "CommHook",
    "Engine",
    "EngineOptions",
    "FullyShardedDataParallelPlugin",
    "ParallelismConfig",
    "StaleParameters",
    "Strategy",
    "divide_loaded_state",
    "follow",
    "init_empty_weights",
    "init_on_device",
    "like_blocks",
    "outermost",
    "rebind",
    "recompute",
    "refuse_renormalised",
    "refuse_replaced",
    "refuse_second_graph",
    "refuse_stale",
    "refuse_strangers",
    "replaced",
    "tie_again",
]
