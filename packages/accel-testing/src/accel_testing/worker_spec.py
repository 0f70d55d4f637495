"""Describe a worker: its rank, its files, its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The description of a worker, which is sent to it.

    Args:
        rank: Its rank.
        size: Number of workers of the pool.
        folder: Folder of the pool.
        join: Whether it joins a process group.
        environ: Its environment.
    """

    rank: int
    size: int
    folder: Path
    join: bool
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size}: expected 0 to {self.size - 1}")

    @property
    def output(self) -> Path:
        """The path of the file for the output of the worker."""
        return self.folder / f"rank-{self.rank}.output"

    @property
    def stacks(self) -> Path:
        """The path of the file for the Python stacks of the worker, which SIGUSR1 asks for."""
        return self.folder / f"rank-{self.rank}.stacks"


def environment(rank: int, size: int, folder: Path, *, join: bool, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: inherited variables, with those of its rank over them.

    ACCEL_STORE_PORT is dropped, which belongs to another job.

    Args:
        rank: Rank of the worker.
        size: Number of workers of the pool.
        folder: Folder of the pool.
        join: Whether the worker joins a process group. If not, MASTER_ADDR is set for a group that the test opens.
        inherited: Environment of the test.
    """
    environ = {name: value for name, value in inherited.items() if name != "ACCEL_STORE_PORT"}
    environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "ACCEL_TESTING_STORE": str(folder / "store"),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "OMP_NUM_THREADS": "1",
    }
    return environ if join else environ | {"MASTER_ADDR": "127.0.0.1"}
