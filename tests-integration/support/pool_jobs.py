"""What ranks of a pool are asked to do, and a look at the processes that they leave."""

import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    return dist.get_rank()


def total() -> Tensor:
    x = torch.tensor([1.0, 10.0]) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    return x


def start_a_long_child() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
