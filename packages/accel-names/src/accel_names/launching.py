"""Do by themselves what parts of a launcher do, for programs that start processes."""

from __future__ import annotations

import argparse
from ast import literal_eval
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from accel_state import Topology, detect
from accel_state.environ import change, process_environ

#: names of torchrun's options
TORCH_LAUNCH_PARAMS = [
    *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone"),
    *("max_restarts", "monitor_interval", "start_method", "role", "module", "m", "no_python", "run_path"),
    *("log_dir", "r", "redirects", "t", "tee", "node_rank", "master_addr", "master_port"),
]


def _filter_args(args: argparse.Namespace, parser: argparse.ArgumentParser, default_args: Any = None) -> Any:
    """Return the arguments that the parser knows, with its defaults for others."""
    known, _ = parser.parse_known_args(list(default_args or ()))
    for name, value in vars(args).items():
        if hasattr(known, name):
            setattr(known, name, value)
    return known


class PrepareForLaunch:
    """A function for processes that a program starts by itself, which tells each its rank.

    Args:
        launcher: The function that each process runs.
        distributed_type: Not used: the device decides it.
        debug: Not used.
    """

    def __init__(self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False) -> None:
        self.launcher = launcher
        self.distributed_type = distributed_type
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        """Call the function as the process of the rank `index`, of as many as WORLD_SIZE says."""
        size = process_environ().get("WORLD_SIZE", "1")
        rank = str(index)
        change({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size})
        self.launcher(*args)


def get_cpu_distributed_information() -> Topology:
    """Return the ranks of this process, as its launcher (torchrun, MPI, SLURM or accel) wrote them."""
    return detect(process_environ())


def _convert_nargs_to_dict(nargs: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a script by name, each of which has a value. Raise ValueError if there is none."""
    names, values = nargs[::2], nargs[1::2]
    wrong = [name for name, value in zip_longest(names, values) if not name.startswith("-") or str(value)[:2] == "--"]
    if wrong or len(names) > len(values):
        raise ValueError(
            f"{', '.join(wrong or names[-1:])}: SageMaker gives a script names with values, as --name value"
        )
    return {name.lstrip("-").replace("-", "_"): _as_value(value) for name, value in zip(names, values, strict=True)}


def _as_value(word: str) -> Any:
    try:
        return literal_eval(word)
    except (ValueError, SyntaxError):
        return word
