"""Every test starts with an environment that names no launcher, and ends without a run."""

import os
from collections.abc import Iterator

import pytest
from accel_state import release

LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "MPI_", "MASTER_", "GROUP_", "LOCAL_", "ACCEL_STORE_", "RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher's variables before the test, and no run of this process after it."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    yield
    release()
