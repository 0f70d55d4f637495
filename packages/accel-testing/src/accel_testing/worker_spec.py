"""What a worker is told: its rank, its files, its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One rank of one pool, as told to its worker."""

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
        """The file that receives what the worker prints."""
        return self.folder / f"rank-{self.rank}.output"

    @property
    def stacks(self) -> Path:
        """The file that receives the worker's Python stacks on SIGUSR1."""
        return self.folder / f"rank-{self.rank}.stacks"


def environment(rank: int, size: int, folder: Path, *, join: bool, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with the variables of this rank over it; a stale ACCEL_STORE_PORT is dropped."""
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
