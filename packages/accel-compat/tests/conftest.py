"""Python in a process of its own, with an environment that says nothing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs a program in the temporary folder, which is on its path, with more variables; gives its output and code."""

    def run(program: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environ = silent(tmp_path)
        environ["PYTHONPATH"] = f"{tmp_path}:{environ['PYTHONPATH']}"
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=stretched(60),
            check=False,
        )

    return run
