"""Shard parameters and gradients over processes, or copy and average them."""

from accel_parallel.comm_hooks import CommHook
from accel_parallel.ddp_options import DistributedDataParallelKwargs
from accel_parallel.empty_weights import init_empty_weights, init_on_device
from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.invariants import BrokenInvariant, refuse_renormalised
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
from accel_parallel.sharded.second_graph import refuse_second_graph
from accel_parallel.stages.recompute import recompute
from accel_parallel.steps import Steps
from accel_parallel.strategies import STRATEGIES
from accel_parallel.strategy import Strategy
from accel_parallel.strategy_options import Asked, StrategyOptions
from accel_parallel.torch_steps import TorchSteps
from accel_parallel.wrap_policy import like_blocks, outermost

__all__ = [
    "STRATEGIES",
    "Asked",
    "BrokenInvariant",
    "CommHook",
    "DistributedDataParallelKwargs",
    "FullyShardedDataParallelPlugin",
    "ParallelismConfig",
    "StaleParameters",
    "Steps",
    "Strategy",
    "StrategyOptions",
    "TorchSteps",
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
    "replaced",
    "tie_again",
]
