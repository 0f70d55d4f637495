"""The device under docs/examples/own_device is found by its entry point alone, and passes the checks for makers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def environ(tmp_path: Path, installed_example: Callable[[str], list[str]]) -> dict[str, str]:
    """An environment in which the distribution is found, without an install."""
    own = silent(tmp_path)
    path = os.pathsep.join([*installed_example("own_device"), own["PYTHONPATH"]])
    return {**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def test_an_accelerator_runs_on_it(environ: dict[str, str]) -> None:
    script = "from accel import Accelerator; a = Accelerator(); a.free_memory(); print(type(a.run.device).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=stretched(500)
    )
    assert (done.returncode, done.stdout) == (0, "CpuThatReturnsMemory\n"), done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_it_passes_the_checks_for_makers(environ: dict[str, str], processes: int, forking_python: str) -> None:
    command = [forking_python, "-m", "conformance", "--device", "cpu", "-n", str(processes), "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=stretched(500), check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in {row["outcome"] for row in json.loads(done.stdout)["checks"]}
