"""Python in a process of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accel_testing import stretched
from forked_programs.forking_python import ForkingPython
from silent_environ import silent

Python = Callable[..., "subprocess.CompletedProcess[str]"]


def runs(executable: str, folder: Path) -> Python:
    def run(program: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environ = silent(folder)
        environ["PYTHONPATH"] = f"{folder}:{environ['PYTHONPATH']}"
        return subprocess.run(
            [executable, "-c", program],
            cwd=folder,
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=stretched(60),
            check=False,
        )

    return run


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs a program in the temporary folder, which is on its path, with more variables; gives its output and code."""
    return runs(sys.executable, tmp_path)


@pytest.fixture(scope="module")
def _server() -> Iterator[ForkingPython]:
    """One that has imported no library that imports accelerate."""
    with ForkingPython(["accel.accelerator"]) as server:
        yield server


@pytest.fixture
def forked(tmp_path: Path, _server: ForkingPython) -> Python:
    """The same, for programs that import torch."""
    return runs(_server.executable, tmp_path)
