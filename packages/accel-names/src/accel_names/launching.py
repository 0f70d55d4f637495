"""Parts of Accelerate's launcher that programs use by themselves."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accel_state.environ import change, process_environ

#: names of torchrun's options
TORCH_LAUNCH_PARAMS = [
    *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone"),
    *("max_restarts", "monitor_interval", "start_method", "role", "module", "m", "no_python", "run_path"),
    *("log_dir", "r", "redirects", "t", "tee", "node_rank", "master_addr", "master_port"),
]


def _filter_args(args: argparse.Namespace, parser: argparse.ArgumentParser, default_args: Any = None) -> Any:
    """The arguments that the parser knows, with its defaults for others."""
    known, _ = parser.parse_known_args(list(default_args or ()))
    for name, value in vars(args).items():
        if hasattr(known, name):
            setattr(known, name, value)
    return known


class PrepareForLaunch:
    """A function for processes that a program starts by itself: tells each its rank, and calls."""

    def __init__(self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False) -> None:
        self.launcher = launcher
        self.distributed_type = distributed_type
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        """Calls the function as the process of this rank, of as many as WORLD_SIZE says."""
        size = process_environ().get("WORLD_SIZE", "1")
        rank = str(index)
        change({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size})
        self.launcher(*args)


@dataclass(frozen=True)
class CpuInformation:
    """The place of a process among those that a launcher started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def get_cpu_distributed_information() -> CpuInformation:
    """The place of this process, as its launcher wrote it into the environment: torchrun, MPI, SLURM or accel."""
    from accel_state import detect

    place = detect(process_environ())
    return CpuInformation(place.rank, place.world_size, place.local_rank, place.local_world_size)


def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Binds this process to its share of the cores that it may use: as many for each process of the machine.

    Raises: ValueError if the machine has fewer cores than processes.
    """
    cores, share = sorted(os.sched_getaffinity(0)), get_cpu_distributed_information().local_world_size
    each = len(cores) // share
    if each < 1 or not 0 <= local_process_index < share:
        raise ValueError(f"process {local_process_index} of {share} on {len(cores)} cores: each needs a core")
    os.sched_setaffinity(0, cores[local_process_index * each : (local_process_index + 1) * each])
